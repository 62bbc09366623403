"""Set up waits for races, and force the order of two calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from flowfabric.engine import Engine, Lease, Refused, Secret, Suspended
from tests.concurrency.gates import StoppedCall, wait_until_blocked
from tests.scenarios import leased
from tests.stores import TestStore

Act = Callable[[Engine], Awaitable[Any]]


@dataclass(frozen=True)
class Wait:
    """A suspended execution with the token of its waitpoint."""

    lease: Lease
    suspension_id: UUID
    token: Secret

    @property
    def id(self) -> UUID:
        return self.lease.execution_id

    def signal(self, name: str = "go", **options: Any) -> Act:
        """Return a call that sends a signal to the waitpoint."""
        return lambda engine: engine.signals.deliver(self.token, name, **options)


async def suspended(engine: Engine, *waitpoints: Any, **options: Any) -> Wait:
    """Suspend a new execution, by default on `boss`, and return it with the token of its first waitpoint."""
    lease = await leased(engine)
    result = await engine.leases.suspend(lease.fence, waitpoints or ["boss"], **options)
    assert isinstance(result, Suspended)
    token = result.waitpoints[0].token
    assert token is not None, "the first waitpoint has a token"
    return Wait(lease, result.suspension_id, token)


async def run_in_forced_order(
    store: TestStore, first: tuple[Engine, Act], second: tuple[Engine, Act], *, skips: bool = False
) -> tuple[Any, Any]:
    """Return the results of both calls. The second call starts after the first call's writes and before its commit.

    On PostgreSQL a call that skips locked rows does not wait. It returns without these rows.
    """
    (stopped_engine, stopped_act), (engine, act) = first, second
    stopped = StoppedCall(store, stopped_engine)
    await stopped.begin(stopped_act)
    waiting = asyncio.ensure_future(act(engine))
    if skips and store.name == "postgres":
        await asyncio.wait([waiting])
    else:
        await wait_until_blocked(store, engine, 1)
    results = await asyncio.gather(stopped.commit(), waiting, return_exceptions=True)
    return results[0], results[1]


async def swap_results(results: Awaitable[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return the results of `run_in_forced_order` with the result of the second call first."""
    one, other = await results
    return other, one


def duty(name: str) -> Act:
    """Return a call that runs this duty once and returns how many items it settled."""

    async def act(engine: Engine) -> int:
        [reconciler_duty] = [item for item in engine.reconcilers._duties if item.name == name]
        return (await reconciler_duty.tick(engine._context.store)).done

    return act


async def state_of(engine: Engine, id_: UUID) -> str:
    return (await engine.executions.describe(id_)).state.value


async def names_of(engine: Engine, id_: UUID) -> list[str]:
    """Return the names of the execution's events, without the two events that start every wait."""
    names = [event.name for event in await engine.executions.history(id_)]
    return names[2:] if names[:2] == ["acquired", "suspended"] else names


def code_of(result: object) -> str:
    """Return the code of a refusal, or the name of the type of any other result."""
    return result.code if isinstance(result, Refused) else type(result).__name__
