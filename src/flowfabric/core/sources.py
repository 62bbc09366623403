"""Who a signal came from, as one text that counts of distinct sources compare.

A source is vouched for by one of three: the token, which was minted for one approver; the engine, which knows the
operator or is itself the sender; or nobody but the sender. The text begins with who vouches, and a sender chooses only
what comes after that, so nobody can pass for an approver or for the engine. Histories and tasks see it so:

    approver:ops          the token was made out to this approver
    program               a program that holds the store
    execution:0192…       a task, by its execution
    operator:ada          an operator, by name
    callback, token       whoever had the token
    claimed:TYPE:NAME     whoever had the token, who claims to be this
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowfabric.core import limits

if TYPE_CHECKING:
    from flowfabric.core.waits import Signal

PROGRAM = "program"
EXECUTION = "execution"
UNKNOWN = "unknown"
_APPROVER = "approver"
_OPERATOR = "operator"
_BY_TOKEN = ("callback", "token")


def source_of(*, approver: str | None, source_type: str, source_identity: str, known_to_engine: bool = False) -> str:
    """The source of a signal: the waitpoint's approver if it has one, whatever the sender says; else type and identity.

    `known_to_engine` is for signals that came without a token: from an operator, a child's end, a timer.
    """
    if approver is not None:
        return f"{_APPROVER}:{limits.name(approver, 'approver')}"
    kind = limits.name(source_type, "source_type")
    identity = limits.name(source_identity, "source_identity")
    # The length says where the type ends, so no pair can be written that reads like another pair.
    return f"{'engine' if known_to_engine else 'claimed'}:{len(kind)}:{kind}:{identity}"


def shown_source(signal: Signal) -> str:
    """Who sent a signal. What nobody vouches for is told apart from what somebody does."""
    vouched_by = signal.source.partition(":")[0]
    if vouched_by == _APPROVER:
        return signal.source
    kind, identity = signal.source_type, signal.source_identity
    if vouched_by == "claimed" and not (kind in _BY_TOKEN and identity == UNKNOWN):
        return f"claimed:{kind}:{identity}"
    if kind == _OPERATOR and (identity == PROGRAM or identity.startswith(f"{EXECUTION}:")):
        return identity  # It went to a wait that is open only now, which is addressed as operators do.
    return joined(kind, identity)


def shown_sender(signal: Signal) -> str | None:
    """Who says to have sent it in an approver's place, if anybody does."""
    is_said = signal.source.startswith(f"{_APPROVER}:") and signal.source_identity != UNKNOWN
    return joined(signal.source_type, signal.source_identity) if is_said else None


def joined(kind: str, identity: str) -> str:
    """Type and identity as one text; nobody's identity is left out."""
    return kind if identity == UNKNOWN else f"{kind}:{identity}"
