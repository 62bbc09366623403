"""What the races of waits begin with, and the way to force which of two calls is first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from flowfabric.engine import Engine, Lease, Refused, Secret, Suspended
from tests.concurrency.gates import StoppedCall, all_wait_for_a_lock
from tests.scenarios import leased
from tests.stores import TestStore

Act = Callable[[Engine], Awaitable[Any]]


@dataclass(frozen=True)
class Wait:
    """A suspended execution, and the token of the waitpoint it waits on."""

    lease: Lease
    suspension_id: UUID
    token: Secret

    @property
    def id(self) -> UUID:
        return self.lease.execution_id

    def signal(self, name: str = "go", **options: Any) -> Act:
        """A signal to its waitpoint."""
        return lambda engine: engine.signals.deliver(self.token, name, **options)


async def suspended(engine: Engine, *waitpoints: Any, **options: Any) -> Wait:
    """A fresh execution that waits, on `boss` unless told; the token is that of the first waitpoint."""
    lease = await leased(engine)
    answer = await engine.leases.suspend(lease.fence, waitpoints or ["boss"], **options)
    assert isinstance(answer, Suspended)
    token = answer.waitpoints[0].token
    assert token is not None, "the first one is addressed"
    return Wait(lease, answer.suspension_id, token)


async def forced(
    store: TestStore, first: tuple[Engine, Act], second: tuple[Engine, Act], *, skips: bool = False
) -> tuple[Any, Any]:
    """What both answered: the second call began while the first had made its writes and had not committed.

    One that skips what is locked does not wait on PostgreSQL, where rows are locked; it comes back without it.
    """
    (stopped_engine, stopped_act), (engine, act) = first, second
    stopped = StoppedCall(store, stopped_engine)
    await stopped.begin(stopped_act)
    waiting = asyncio.ensure_future(act(engine))
    if skips and store.name == "postgres":
        await asyncio.wait([waiting])
    else:
        await all_wait_for_a_lock(store, engine, 1)
    answers = await asyncio.gather(stopped.commit(), waiting, return_exceptions=True)
    return answers[0], answers[1]


async def swapped(answers: Awaitable[tuple[Any, Any]]) -> tuple[Any, Any]:
    """The answers of a forced race, those of the second call first."""
    one, other = await answers
    return other, one


def duty(name: str) -> Act:
    """One run of this duty alone; answers how many it settled."""

    async def act(engine: Engine) -> int:
        [found] = [item for item in engine.reconcilers._duties if item.name == name]
        return (await found.tick(engine._context.store)).done

    return act


async def state_of(engine: Engine, id_: UUID) -> str:
    return (await engine.executions.describe(id_)).state.value


async def names_of(engine: Engine, id_: UUID) -> list[str]:
    """The names of its events, without those that every wait begins with."""
    names = [event.name for event in await engine.executions.history(id_)]
    return names[2:] if names[:2] == ["acquired", "suspended"] else names


def code_of(answer: object) -> str:
    """The code of a refusal, or what else it is."""
    return answer.code if isinstance(answer, Refused) else type(answer).__name__
