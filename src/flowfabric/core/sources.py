"""Who a signal came from, as one text that counts of distinct sources compare.

A source is vouched for by one of three: the token, which was minted for one approver; the engine, which knows the
operator or is itself the sender; or nobody but the sender. The text begins with who vouches, and a sender chooses only
what comes after that, so nobody can pass for an approver or for the engine.
"""

from __future__ import annotations

from flowfabric.core import limits


def source_of(*, approver: str | None, source_type: str, source_identity: str, known_to_engine: bool = False) -> str:
    """The source of a signal: the waitpoint's approver if it has one, whatever the sender says; else type and identity.

    `known_to_engine` is for signals that came without a token: from an operator, a child's end, a timer.
    """
    if approver is not None:
        return f"approver:{limits.name(approver, 'approver')}"
    kind = limits.name(source_type, "source_type")
    identity = limits.name(source_identity, "source_identity")
    # The length says where the type ends, so no pair can be written that reads like another pair.
    return f"{'engine' if known_to_engine else 'claimed'}:{len(kind)}:{kind}:{identity}"
