"""Signals that come by a token: an approver's decision, or the payload of a callback.

One token, one decision: all decisions of a waitpoint have the same key, so the engine takes the first and answers the
others as its repeats. The ids of their signals follow from the waitpoint and the word, so that a repeat tells which
the first was without anything being read.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from flowfabric.core.ids import derived_id
from flowfabric.core.outcomes import Accepted, DuplicateSignal
from flowfabric.core.secret import Secret
from flowfabric.core.tokens import read_token

if TYPE_CHECKING:
    from flowfabric.engine.engine import Engine

Word = Literal["approve", "reject"]

APPROVE: Word = "approve"
REJECT: Word = "reject"
CALLBACK = "callback"
DECISION_KEY = "decision"


@dataclass(frozen=True, slots=True)
class Decided:
    """The decision that counts, which is the first one; None if it came some other way. `repeated`: not this one."""

    word: Word | None
    repeated: bool


async def decide(
    engine: Engine, token: str | Secret, word: Word, comment: str = "", *, source_type: str = "link",
    by: str = "unknown",
) -> Decided:  # fmt: skip
    """Delivers an approver's decision, and answers the one that counts. Who sends it is `by`, on trust, unless the
    token was made for an approver."""
    waitpoint = read_token(token).unverified.waitpoint_id
    ids = {derived_id(waitpoint, DECISION_KEY, each): each for each in (APPROVE, REJECT)}
    answer = await deliver_decision(engine, token, word, comment, source_type, by)
    repeated = isinstance(answer, DuplicateSignal)
    return Decided(ids.get(answer.signal_id) if repeated else word, repeated)


async def deliver_decision(
    engine: Engine, token: str | Secret, word: Word, comment: str, source_type: str, by: str = "unknown"
) -> Accepted | DuplicateSignal:
    """The decision as a signal: of one token the first counts, whichever way it came."""
    waitpoint = read_token(token).unverified.waitpoint_id
    return await engine.signals.deliver(
        token, word, json.dumps({"comment": comment}).encode(), category="approval", source_type=source_type,
        source_identity=by, signal_id=derived_id(waitpoint, DECISION_KEY, word), key=DECISION_KEY,
    )  # fmt: skip


async def call_back(engine: Engine, token: str | Secret, payload: bytes, *, key: str | None = None) -> None:
    """Delivers the payload of a callback. Without a key the same payload counts as the same call, so that a sender who
    repeats it after a lost reply hears what it would have heard."""
    same = f"sha256 {hashlib.sha256(payload).hexdigest()}" if key is None else key
    await engine.signals.deliver(token, CALLBACK, payload, category="callback", source_type="callback", key=same)
