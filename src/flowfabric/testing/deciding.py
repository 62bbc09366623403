"""Signals and decisions of people in tests, by the name of what they decide."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from uuid import UUID, uuid4

from flowfabric.core.errors import NotFound
from flowfabric.core.outcomes import DuplicateSignal
from flowfabric.core.views import WaitpointView
from flowfabric.core.waits import WaitpointState
from flowfabric.engine.engine import Engine
from flowfabric.sdk import signals
from flowfabric.sdk.aliases import T
from flowfabric.sdk.deciding import DECISION_KEY, Word
from flowfabric.sdk.signals import Delivery, Signal


@dataclass(frozen=True, slots=True)
class Said:
    """What somebody decided."""

    by: str
    word: Word
    comment: str = ""


class Deliveries:
    """Delivers signals and decisions, twice if it is told to. As with tokens, the first decision of each approver
    counts, and a second one is answered with it."""

    def __init__(self) -> None:
        self.come_twice = False
        self._decided: dict[tuple[UUID, str], tuple[Word, UUID]] = {}

    async def signal(self, engine: Engine, id_: UUID, signal: Signal[T], value: T, key: str | None) -> Delivery:
        """Delivers a signal."""
        payload, once = signal.form.store(value), key or (str(uuid4()) if self.come_twice else None)
        return await self._delivered(lambda: signals.send(engine, id_, signal.name, payload, once))

    async def decide(self, engine: Engine, id_: UUID, name: str, said: Said) -> Delivery:
        """Delivers a decision to what is open under this name."""
        waitpoint = await open_approval(engine, id_, name, said.by)
        first = self._decided.get((waitpoint.id, said.by))
        if first is not None and first[0] != said.word:
            return DuplicateSignal(first[1])
        answer = await self._delivered(lambda: decide(engine, waitpoint, said.by, said.word, said.comment))
        self._decided.setdefault((waitpoint.id, said.by), (said.word, answer.signal_id))
        return answer

    async def _delivered(self, deliver: Callable[[], Awaitable[Delivery]]) -> Delivery:
        first = await deliver()
        if self.come_twice:
            await deliver()
        return first


async def decide(engine: Engine, waitpoint: WaitpointView, by: str, word: Word, comment: str) -> Delivery:
    """Delivers a decision to an approval; a second one of the same approver answers as a duplicate."""
    payload = json.dumps({"comment": comment}).encode()
    return await engine.signals.approve(
        waitpoint.execution_id, waitpoint.key, word, payload, suffix=DECISION_KEY, principal=by
    )


async def open_approval(engine: Engine, id_: UUID, name: str, by: str) -> WaitpointView:
    """The oldest approval of this name that is open for this approver."""
    asked: list[str] = []
    after: UUID | None = None
    while page := await engine.waitpoints.list(id_, after=after):
        for waitpoint in page:
            if waitpoint.state is not WaitpointState.CLOSED and "approval:" in waitpoint.key:
                if is_for(waitpoint.key, name, by):
                    return waitpoint
                asked.append(waitpoint.key)
        after = page[-1].id
    message = f"nobody asks {by} for {name!r} now; open are {', '.join(asked) or 'no approvals at all'}"
    raise NotFound("approval_not_open", message, execution_id=id_)


def is_for(key: str, name: str, by: str) -> bool:
    """True for `approval:NAME`, `approval:NAME#2`, and those with the approver in brackets, in any scope."""
    label = key.rpartition("approval:")[2]
    asked, bracket, who = label.partition("[")
    return asked.partition("#")[0] == name and (not bracket or who == f"{by}]")
