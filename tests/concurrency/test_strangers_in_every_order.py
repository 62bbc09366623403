"""Somebody begins to wait for an execution that is no child of its own while that one ends, statement by statement on
two connections, in one order after another: it is told exactly once, and nobody waits in a circle."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from flowfabric.engine import AnyOf, Child, Engine, Lease, Satisfied, Single, Standing
from flowfabric.testing import VirtualClock
from tests.concurrency.interleaving import Orders, two_walkers, walk
from tests.concurrency.waits import Act
from tests.flows import built
from tests.scenarios import leased
from tests.sizes import Size
from tests.stores import PostgresTestStore

Arranged = tuple[Lease, UUID, Act]


async def listening(engine: Engine) -> Lease:
    """Who is going to wait; it also has a standing waitpoint."""
    return await leased(engine, signals=["go"])


async def plain_work(engine: Engine) -> Arranged:
    stranger, lease = await leased(engine), await listening(engine)
    return lease, stranger.execution_id, lambda side: side.leases.complete(stranger.fence, b"")


async def plain_work_that_came_later(engine: Engine) -> Arranged:
    lease, stranger = await listening(engine), await leased(engine)
    return lease, stranger.execution_id, lambda side: side.leases.complete(stranger.fence, b"")


async def work_that_fails(engine: Engine) -> Arranged:
    lease, stranger = await listening(engine), await leased(engine)
    return lease, stranger.execution_id, lambda side: side.operator.cancel(stranger.execution_id)


async def a_member(engine: Engine) -> Arranged:
    lease, flow = await listening(engine), await built(engine, {"a": []})
    member = await flow.claim("a")
    return lease, flow["a"], lambda side: side.leases.complete(member.fence, b"")


async def a_member_cancelled_with_its_flow(engine: Engine) -> Arranged:
    flow = await built(engine, {"a": [], "b": ["a"]})
    return await listening(engine), flow["b"], lambda side: side.flows.cancel(flow.id)


def waited_for_already(arrange: Callable[[Engine], Awaitable[Arranged]]) -> Callable[[Engine], Awaitable[Arranged]]:
    """The same, and the waiting one has kept a waitpoint for it, which it binds again."""

    async def again(engine: Engine) -> Arranged:
        lease, stranger, end = await arrange(engine)
        either = AnyOf([Single("it"), Single("go")])
        bindings: list[Any] = [Child("it", stranger), Standing("go")]
        await engine.leases.suspend(lease.fence, bindings, either, rest="keep")
        await engine.signals.send(lease.execution_id, "go")
        return await engine.leases.claim_execution(lease.execution_id, "worker-2"), stranger, end

    again.__name__ = f"{arrange.__name__}_waited_for_already"
    return again


PAIRS: list[Callable[[Engine], Awaitable[Arranged]]] = [
    plain_work,
    plain_work_that_came_later,
    work_that_fails,
    a_member,
    a_member_cancelled_with_its_flow,
]
PAIRS += [waited_for_already(pair) for pair in PAIRS]


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
@pytest.mark.parametrize("arrange", PAIRS, ids=lambda pair: pair.__name__.replace("_", " "))
async def test_whoever_waits_is_told_once_and_nobody_waits_in_a_circle(
    store: PostgresTestStore, engine: Engine, clock: VirtualClock, size: Size,
    arrange: Callable[[Engine], Awaitable[Arranged]], deadlocks: list[BaseException],
) -> None:  # fmt: skip
    orders, most = Orders(switches=size.of(1, 1, 2)), size.of(12, 99, 999)
    async with two_walkers(store, clock) as walkers:
        while orders.runs < most:
            lease, stranger, end = await arrange(engine)
            wait: Act = _waiting(lease, stranger)
            await walk(walkers, (end, wait), orders)
            _, answer = [walker.answer() for walker in walkers]
            state = (await engine.executions.describe(lease.execution_id)).state.value
            assert state == ("active" if isinstance(answer, Satisfied) else "waiting"), f"{answer}; {orders}"
            assert len(await engine.signals.observe(lease.execution_id)) == 1, f"{answer}; {orders}"
            if not orders.again():
                break
    assert deadlocks == []


def _waiting(lease: Lease, stranger: UUID) -> Act:
    return lambda side: side.leases.suspend(lease.fence, [Child("it", stranger)])
