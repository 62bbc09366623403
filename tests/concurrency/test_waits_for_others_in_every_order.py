"""Test a wait for an execution that ends concurrently, in every order of the statements.

The awaited execution is not a child of the waiting execution. The waiting execution is notified exactly once, and no
deadlock occurs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from flowfabric.engine import AnyOf, Child, Engine, Lease, Satisfied, Single, StandingWaitpoint
from flowfabric.testing import VirtualClock
from tests.concurrency.schedules import Orders, two_walkers, walk
from tests.concurrency.waits import Act
from tests.flows import built
from tests.scenarios import leased
from tests.sizes import Size
from tests.stores import PostgresTestStore

Arranged = tuple[Lease, UUID, Act]


async def lease_waiter(engine: Engine) -> Lease:
    """Return a lease on the execution that will wait. This execution also has a standing waitpoint."""
    return await leased(engine, signals=["go"])


async def older_execution(engine: Engine) -> Arranged:
    awaited, lease = await leased(engine), await lease_waiter(engine)
    return lease, awaited.execution_id, lambda side: side.leases.complete(awaited.fence, b"")


async def newer_execution(engine: Engine) -> Arranged:
    lease, awaited = await lease_waiter(engine), await leased(engine)
    return lease, awaited.execution_id, lambda side: side.leases.complete(awaited.fence, b"")


async def cancelled_execution(engine: Engine) -> Arranged:
    lease, awaited = await lease_waiter(engine), await leased(engine)
    return lease, awaited.execution_id, lambda side: side.operator.cancel(awaited.execution_id)


async def flow_member(engine: Engine) -> Arranged:
    lease, flow = await lease_waiter(engine), await built(engine, {"a": []})
    member = await flow.claim("a")
    return lease, flow["a"], lambda side: side.leases.complete(member.fence, b"")


async def member_cancelled_with_its_flow(engine: Engine) -> Arranged:
    flow = await built(engine, {"a": [], "b": ["a"]})
    return await lease_waiter(engine), flow["b"], lambda side: side.flows.cancel(flow.id)


def with_kept_waitpoint(arrange: Callable[[Engine], Awaitable[Arranged]]) -> Callable[[Engine], Awaitable[Arranged]]:
    """Extend `arrange`, so that the waiting execution already has an open waitpoint for the awaited execution.

    The wait then binds this waitpoint again.
    """

    async def again(engine: Engine) -> Arranged:
        lease, awaited, end = await arrange(engine)
        either = AnyOf([Single("it"), Single("go")])
        bindings: list[Any] = [Child("it", awaited), StandingWaitpoint("go")]
        await engine.leases.suspend(lease.fence, bindings, either, unused_waitpoints="keep")
        await engine.signals.send(lease.execution_id, "go")
        return await engine.leases.claim_execution(lease.execution_id, "worker-2"), awaited, end

    again.__name__ = f"{arrange.__name__}_with_kept_waitpoint"
    return again


PAIRS: list[Callable[[Engine], Awaitable[Arranged]]] = [
    older_execution,
    newer_execution,
    cancelled_execution,
    flow_member,
    member_cancelled_with_its_flow,
]
PAIRS += [with_kept_waitpoint(pair) for pair in PAIRS]


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
@pytest.mark.parametrize("arrange", PAIRS, ids=lambda pair: pair.__name__.replace("_", " "))
async def test_waiting_execution_is_notified_once_without_deadlock(
    store: PostgresTestStore,
    engine: Engine,
    clock: VirtualClock,
    size: Size,
    arrange: Callable[[Engine], Awaitable[Arranged]],
    deadlocks: list[BaseException],
) -> None:
    orders, most = Orders(switches=size.of(1, 1, 2)), size.of(12, 99, 999)
    async with two_walkers(store, clock) as walkers:
        while orders.runs < most:
            lease, awaited, end = await arrange(engine)
            wait: Act = _waiting(lease, awaited)
            await walk(walkers, (end, wait), orders)
            _, result = [walker.result() for walker in walkers]
            state = (await engine.executions.describe(lease.execution_id)).state.value
            assert state == ("active" if isinstance(result, Satisfied) else "waiting"), f"{result}; {orders}"
            assert len(await engine.signals.list(lease.execution_id)) == 1, f"{result}; {orders}"
            if not orders.again():
                break
    assert deadlocks == []


def _waiting(lease: Lease, awaited: UUID) -> Act:
    return lambda side: side.leases.suspend(lease.fence, [Child("it", awaited)])
