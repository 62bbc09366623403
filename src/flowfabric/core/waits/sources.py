"""The source of a signal as one string. Conditions that count distinct sources compare these strings.

Some sources are verified, others are only claimed by the sender. A token verifies the approver that it was minted for.
The engine verifies operators and its own signals. Any other source is only claimed. The string begins with `approver`,
`engine` or `claimed`. A sender cannot choose that word, so it cannot pass for an approver or the engine. Histories and
tasks show sources as:

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
    """Return the source string: the approver if the waitpoint has one, otherwise the sender's type and identity.

    `known_to_engine` is True for signals without a token, such as those of operators, ended children and timers.
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
        return identity  # A program or task sent this signal by name; `as_approval` put this text here.
    return join_source(kind, identity)


def format_sender(signal: StoredSignal) -> str | None:
    """Return the sender that a signal with an approver's token claims, or None if it claims no sender."""
    is_said = signal.source.startswith(f"{_APPROVER}:") and signal.source_identity != UNKNOWN
    return join_source(signal.source_type, signal.source_identity) if is_said else None


def join_source(kind: str, identity: str) -> str:
    """Return the type and the identity of a source as one string, without the identity if it is unknown."""
    return kind if identity == UNKNOWN else f"{kind}:{identity}"


def source_name(source: str) -> str:
    """Return the name in a source, for use in a sentence. A name that is only claimed is marked as unverified."""
    vouched_by, _, rest = source.partition(":")
    if vouched_by == _APPROVER:
        return rest
    length, _, pair = rest.partition(":")
    if vouched_by not in ("engine", "claimed") or not length.isdecimal():
        return source
    kind, identity = pair[: int(length)], pair[int(length) + 1 :]
    name = kind if identity == UNKNOWN else identity
    return f"{name} [unverified]" if vouched_by == "claimed" else name
