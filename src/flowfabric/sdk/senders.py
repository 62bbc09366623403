"""Who sent a signal, as it is stored and as a task sees it.

approver:ops          the token was made out to this approver
program               a program that holds the store
execution:0192…       a task, by its execution
operator:ada          an operator, by name
callback, token       whoever had the token
claimed:TYPE:NAME     whoever had the token, who claims to be this
"""

from __future__ import annotations

from flowfabric.core.waits import Signal
from flowfabric.sdk.units import UNIT

PROGRAM = "program"
EXECUTION = "execution"
_UNKNOWN = "unknown"
_OPERATOR = "operator"
_BY_TOKEN = ("callback", "token")


def sender() -> tuple[str, str]:
    """Who sends just now, by type and identity: the execution whose code this is, or else some program."""
    unit = UNIT.get()
    return (PROGRAM, _UNKNOWN) if unit is None else (EXECUTION, str(unit.run.lease.execution_id))


def principal() -> str:
    """The same as one name."""
    return _joined(*sender())


def shown(signal: Signal) -> str:
    """Who sent it. What nobody vouches for is told apart from what somebody does."""
    vouched_by = signal.source.partition(":")[0]
    if vouched_by == "approver":
        return signal.source
    kind, identity = signal.source_type, signal.source_identity
    if vouched_by == "claimed" and not (kind in _BY_TOKEN and identity == _UNKNOWN):
        return f"claimed:{kind}:{identity}"
    if kind == _OPERATOR and (identity == PROGRAM or identity.startswith(f"{EXECUTION}:")):
        return identity  # It went to a wait that is open only now, which is addressed as operators do.
    return _joined(kind, identity)


def _joined(kind: str, identity: str) -> str:
    return kind if identity == _UNKNOWN else f"{kind}:{identity}"
