"""Tests of the hints that name a worker instance whose lease others ended or asked to stop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from flowfabric.core.executions.views import LeaseSnapshot
from flowfabric.engine import Engine, Lease, OnAttemptTimeout, Policy, any_of
from flowfabric.notify.waiters import Waiter
from flowfabric.testing import VirtualClock
from tests.flows import built, with_children
from tests.scenarios import WORKER, leased, submitted
from tests.stores import TestStore, opened


@pytest.fixture
async def engine(store: TestStore, clock: VirtualClock) -> AsyncIterator[Engine]:
    """Return an engine without a listener, whose waiters are notified only of its own commits."""
    async with opened(store, clock, notify=False) as engine:
        yield engine


End = Callable[[Engine, VirtualClock, Lease], Awaitable[object]]
TIMED = Policy(deadline="1h", attempt_timeout="30m", on_attempt_timeout=OnAttemptTimeout.EXPIRE)


async def cancel(engine: Engine, clock: VirtualClock, lease: Lease) -> None:
    await engine.operator.cancel(lease.execution_id)


async def request_cancel(engine: Engine, clock: VirtualClock, lease: Lease) -> None:
    await engine.operator.cancel(lease.execution_id, grace="1h")


async def revoke(engine: Engine, clock: VirtualClock, lease: Lease) -> None:
    await engine.operator.revoke_lease(lease.execution_id)


async def time_out(engine: Engine, clock: VirtualClock, lease: Lease) -> None:
    clock.advance("30m")
    await engine.reconcilers.tick()


async def pass_the_deadline(engine: Engine, clock: VirtualClock, lease: Lease) -> None:
    clock.advance("1h")
    await engine.reconcilers.tick()


async def complete(engine: Engine, clock: VirtualClock, lease: Lease) -> None:
    await engine.leases.complete(lease.fence, b"out")


async def complete_linked(engine: Engine, clock: VirtualClock, lease: Lease) -> None:
    await with_children(engine, lease, "a")
    await engine.leases.complete(lease.fence, b"out")


async def fail(engine: Engine, clock: VirtualClock, lease: Lease) -> None:
    await engine.leases.fail(lease.fence, "broken")


async def suspend(engine: Engine, clock: VirtualClock, lease: Lease) -> None:
    await engine.leases.suspend(lease.fence, ["go"])


async def delay(engine: Engine, clock: VirtualClock, lease: Lease) -> None:
    await engine.leases.delay(lease.fence, after="1m")


async def release(engine: Engine, clock: VirtualClock, lease: Lease) -> None:
    await engine.leases.release(lease.fence)


async def cancel_itself(engine: Engine, clock: VirtualClock, lease: Lease) -> None:
    await engine.leases.cancel(lease.fence)


async def work_on(engine: Engine, clock: VirtualClock, lease: Lease) -> None:
    await engine.leases.renew(lease.fence)
    await engine.leases.progress(lease.fence, 50)
    await engine.executions.set_tags(lease.execution_id, {"team.owner": "b"})
    await submitted(engine)


async def was_notified(waiter: Waiter) -> bool:
    """Return whether the waiter was notified. The writer thread of SQLite notifies it soon after the commit."""
    return await waiter.wait(0.2)


@pytest.mark.parametrize("end", [cancel, request_cancel, revoke, time_out, pass_the_deadline])
async def test_worker_is_named_if_others_end_its_lease_or_request_a_cancel(
    engine: Engine, clock: VirtualClock, end: End
) -> None:
    lease = await leased(engine, policy=TIMED, lease_ttl="2h")
    with engine.leases.watch_held(WORKER) as mine, engine.leases.watch_held("another") as others:
        await end(engine, clock, lease)
        assert await was_notified(mine)
        assert not await was_notified(others)


@pytest.mark.parametrize(
    "end",
    [complete, complete_linked, fail, suspend, delay, release, cancel_itself, work_on],
    ids=lambda end: end.__name__,
)
async def test_worker_gets_no_hint_about_what_it_did_itself(engine: Engine, clock: VirtualClock, end: End) -> None:
    lease = await leased(engine, policy=TIMED, lease_ttl="2h")
    with engine.leases.watch_held(WORKER) as mine:
        await end(engine, clock, lease)
        assert not await was_notified(mine)


async def test_worker_of_a_cancelled_child_is_named(engine: Engine) -> None:
    parent = await leased(engine, worker="parent")
    children = await with_children(engine, parent, "a", "b")
    await engine.leases.claim_execution(children["a"], WORKER)
    with engine.leases.watch_held(WORKER) as mine:
        await engine.leases.cancel_children(parent.fence, [children["b"]])
        assert not await was_notified(mine)
        await engine.leases.cancel_children(parent.fence, [children["a"]])
        assert await was_notified(mine)


async def test_worker_of_a_loser_and_of_a_cancelled_member_is_named(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["a", "b"], "d": []}, joins={"c": any_of()})
    for name, worker in (("b", "loser"), ("d", "member")):
        await engine.leases.claim_execution(flow[name], worker)
    with engine.leases.watch_held("loser") as loser, engine.leases.watch_held("member") as member:
        await flow.complete("a")
        assert await was_notified(loser)
        assert not await was_notified(member)
        await engine.flows.cancel(flow.id)
        assert await was_notified(member)


async def test_peek_returns_the_live_lease_and_the_requested_cancel(engine: Engine, clock: VirtualClock) -> None:
    lease, waiting = await leased(engine, lease_ttl="2h"), await submitted(engine)
    ids = [lease.execution_id, waiting]
    live = LeaseSnapshot(lease.fence.lease_id, None)
    assert await engine.leases.peek(ids) == {lease.execution_id: live, waiting: LeaseSnapshot(None, None)}
    outcome = await engine.operator.cancel(lease.execution_id, grace="1h")
    snapshot = (await engine.leases.peek(ids))[lease.execution_id]
    assert snapshot == LeaseSnapshot(lease.fence.lease_id, outcome.due_at)  # type: ignore[union-attr]
    await engine.leases.complete(lease.fence)
    assert (await engine.leases.peek(ids))[lease.execution_id].lease_id is None
    assert await engine.for_namespace("other").leases.peek(ids) == {}
