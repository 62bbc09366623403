"""Delivery of signals and approval decisions in tests. Approvals are addressed by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID, uuid4

from flowfabric.core.errors import NotFound
from flowfabric.core.executions.views import WaitpointView
from flowfabric.core.waits.decisions import DecisionWord
from flowfabric.core.waits.records import WaitpointState
from flowfabric.engine.engine import Engine
from flowfabric.runtime import signals
from flowfabric.runtime.signals import Delivery, Signal
from flowfabric.values.aliases import T


class Deliveries:
    """Sends signals and decisions, each of them twice if `is_duplicating` is set."""

    def __init__(self) -> None:
        self.is_duplicating = False

    async def signal(self, engine: Engine, id_: UUID, signal: Signal[T], value: T, key: str | None) -> Delivery:
        """Send a signal to an execution."""
        payload = signal.payload_type.store(value)
        signal_key = key or (str(uuid4()) if self.is_duplicating else None)
        return await self._deliver(lambda: signals.send(engine, id_, signal.name, payload, signal_key))

    async def decide(self, engine: Engine, id_: UUID, name: str, by: str, word: DecisionWord, comment: str) -> Delivery:
        """Send the decision of an approver to the open approval of this name."""
        waitpoint = await find_open_approval(engine, id_, name, by)
        return await self._deliver(lambda: decide(engine, waitpoint, by, word, comment))

    async def _deliver(self, deliver: Callable[[], Awaitable[Delivery]]) -> Delivery:
        first = await deliver()
        if self.is_duplicating:
            await deliver()
        return first


async def decide(engine: Engine, waitpoint: WaitpointView, by: str, word: DecisionWord, comment: str) -> Delivery:
    """Send a decision of `by` to an approval. Return `DuplicateSignal` if `by` has already decided."""
    return (await engine.signals.decide(waitpoint.id, word, comment, principal=by)).delivery


async def find_open_approval(engine: Engine, id_: UUID, name: str, by: str) -> WaitpointView:
    """Return the oldest approval of this name that is open for the approver `by`."""
    open_keys: list[str] = []
    after: UUID | None = None
    while page := await engine.waitpoints.list(id_, after=after):
        for waitpoint in page:
            if waitpoint.state is not WaitpointState.CLOSED and "approval:" in waitpoint.key:
                if is_for(waitpoint.key, name, by):
                    return waitpoint
                open_keys.append(waitpoint.key)
        after = page[-1].id
    message = f"no approval {name!r} is open for {by}; open approvals: {', '.join(open_keys) or 'none'}"
    raise NotFound("approval_not_open", message, execution_id=id_)


def is_for(key: str, name: str, by: str) -> bool:
    """Return whether `key` is an approval `name` that `by` can decide.

    Keys look like `approval:NAME` or `approval:NAME#2`. A scope may come first, and an approver in brackets may come
    last.
    """
    label = key.rpartition("approval:")[2]
    numbered_name, bracket, approver = label.partition("[")
    return numbered_name.partition("#")[0] == name and (not bracket or approver == f"{by}]")
