"""The source of a signal as one string, which counts of distinct sources compare.

A source may be vouched for or only claimed. A token vouches for the approver it was minted for. The engine vouches for
operators and for itself. Any other source is only a claim of the sender. The string begins with the party that vouches
for the source; a sender chooses only the rest, so it cannot pass for an approver or the engine. Histories and tasks
show sources as:

    approver:ops          the token was minted for this approver
    program               a program that holds the store
    execution:0192…       a task, by its execution
    operator:ada          an operator, by name
    callback, token       the holder of the token
    claimed:TYPE:NAME     the holder of the token, who claims to be this
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowfabric.core import validation

if TYPE_CHECKING:
    from flowfabric.core.waits.records import StoredSignal

PROGRAM = "program"
EXECUTION = "execution"
UNKNOWN = "unknown"
OPERATOR = "operator"
_APPROVER = "approver"
_BY_TOKEN = ("callback", "token")


def make_source(*, approver: str | None, source_type: str, source_identity: str, known_to_engine: bool = False) -> str:
    """Return the source of a signal: the waitpoint's approver if it has one, otherwise type and identity.

    `known_to_engine` is for signals without a token: from an operator, the end of a child, or a timer.
    """
    if approver is not None:
        return f"{_APPROVER}:{validation.name(approver, 'approver')}"
    kind = validation.name(source_type, "source_type")
    identity = validation.name(source_identity, "source_identity")
    # The length marks the end of the type, so that two different pairs never give the same string.
    return f"{'engine' if known_to_engine else 'claimed'}:{len(kind)}:{kind}:{identity}"


def format_source(signal: StoredSignal) -> str:
    """Return the sender of a signal for display; unverified senders are marked as claimed."""
    vouched_by = signal.source.partition(":")[0]
    if vouched_by == _APPROVER:
        return signal.source
    kind, identity = signal.source_type, signal.source_identity
    if vouched_by == "claimed" and not (kind in _BY_TOKEN and identity == UNKNOWN):
        return f"claimed:{kind}:{identity}"
    if kind == OPERATOR and (identity == PROGRAM or identity.startswith(f"{EXECUTION}:")):
        return identity  # A program or task sent the signal to an open wait by name, as operators do.
    return join_source(kind, identity)


def format_sender(signal: StoredSignal) -> str | None:
    """Return who claims to have sent the signal for an approver; None if nothing was claimed."""
    is_said = signal.source.startswith(f"{_APPROVER}:") and signal.source_identity != UNKNOWN
    return join_source(signal.source_type, signal.source_identity) if is_said else None


def join_source(kind: str, identity: str) -> str:
    """Return type and identity as one string; an unknown identity is left out."""
    return kind if identity == UNKNOWN else f"{kind}:{identity}"


def source_name(source: str) -> str:
    """Return the name in a source for a sentence; a name that only the sender claims is marked as unverified."""
    vouched_by, _, rest = source.partition(":")
    if vouched_by == _APPROVER:
        return rest
    length, _, pair = rest.partition(":")
    if vouched_by not in ("engine", "claimed") or not length.isdecimal():
        return source
    kind, identity = pair[: int(length)], pair[int(length) + 1 :]
    name = kind if identity == UNKNOWN else identity
    return f"{name} [unverified]" if vouched_by == "claimed" else name
