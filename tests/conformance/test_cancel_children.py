"""Tests of cancel_children, by which a lease holder cancels children of its execution in one commit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid4

import pytest

from flowfabric.engine import Child, Engine, InvalidRequest, Lease, NotFound, State, Step
from flowfabric.ops.flows import descendants as families
from flowfabric.testing import VirtualClock
from tests.expectations import nothing_written, refused
from tests.flows import built, child, claimable, with_children
from tests.scenarios import leased, submitted
from tests.stores import TestStore

Arrange = Callable[[Engine, Lease], Awaitable[object]]


async def claim(engine: Engine, id_: UUID) -> Lease:
    return await engine.leases.claim_execution(id_, "worker-2")


async def state_of(engine: Engine, id_: UUID) -> State:
    return (await engine.executions.describe(id_)).state


async def keep_running(engine: Engine, lease: Lease) -> None:
    """Leave the child running."""


async def suspend(engine: Engine, lease: Lease) -> None:
    await engine.leases.suspend(lease.fence, ["go"])


async def retry(engine: Engine, lease: Lease) -> None:
    await engine.leases.fail(lease.fence, "not yet")


async def delay(engine: Engine, lease: Lease) -> None:
    await engine.leases.delay(lease.fence, after="1h", steps=[Step("one")])


async def start_child(engine: Engine, lease: Lease) -> None:
    await with_children(engine, lease, "kid")


async def wait_for_child(engine: Engine, lease: Lease) -> None:
    [kid] = (await with_children(engine, lease, "kid")).values()
    await engine.leases.wait_children(lease.fence, [kid])


async def read_facts(engine: Engine, id_: UUID) -> list[Any]:
    """Return the observable facts of an execution and its children, without ids and other unique values."""
    execution = await engine.executions.describe(id_)
    history = await engine.executions.history(id_)
    events = [
        (
            event.family,
            event.name,
            event.state,
            event.worker,
            event.epoch,
            event.version,
            event.ends_lease,
            event.principal,
            event.reason,
            (event.details or {}).get("source"),
            (event.details or {}).get("cause"),
        )
        for event in history
    ]
    children = await engine.executions.children(id_)
    waitpoints = await engine.waitpoints.list(id_)
    shown = (
        execution.state, execution.epoch, execution.version, execution.attempt_index, execution.ended_at,
        execution.cancelled_by, execution.cancel_reason, execution.suspension,
        [(waitpoint.key, waitpoint.state) for waitpoint in waitpoints],
        await engine.executions.result(id_),
    )  # fmt: skip
    return [shown, events, *[await read_facts(engine, child.id) for child in children]]


@pytest.mark.parametrize("arrange", [keep_running, suspend, retry, delay, start_child, wait_for_child])
async def test_child_cancelled_in_a_batch_ends_like_one_cancelled_alone(
    engine: Engine, clock: VirtualClock, arrange: Arrange
) -> None:
    lease = await leased(engine, lease_ttl="1h")
    children = await with_children(engine, lease, "alone", "together", "new", "unclaimed")
    for name in ("alone", "together"):
        await arrange(engine, await claim(engine, children[name]))
    clock.advance("1s")
    await engine.operator.cancel(children["alone"], "enough", children=True)
    await engine.operator.cancel(children["new"], "enough", children=True)
    await engine.leases.cancel_children(lease.fence, [children["together"], str(children["unclaimed"])], "enough")
    assert await read_facts(engine, children["together"]) == await read_facts(engine, children["alone"])
    assert await read_facts(engine, children["unclaimed"]) == await read_facts(engine, children["new"])
    assert await state_of(engine, children["together"]) is State.CANCELLED


async def test_descendants_of_a_child_are_cancelled_with_it_and_siblings_are_not(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b")
    inner = await claim(engine, children["a"])
    [kid] = (await with_children(engine, inner, "kid")).values()
    deep = await claim(engine, kid)
    [grandkid] = (await with_children(engine, deep, "kid")).values()
    await engine.leases.cancel_children(lease.fence, [children["a"]])
    for id_ in (children["a"], kid, grandkid):
        assert await state_of(engine, id_) is State.CANCELLED
    last = (await engine.executions.history(grandkid))[-1]
    assert last.details == {"source": "operator_override", "cause": "parent", "parent": str(children["a"])}
    assert await claimable(engine) == {children["b"]}
    await refused(engine.leases.renew(inner.fence), "execution_not_active")


async def test_repeated_cancel_writes_nothing(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b")
    await engine.leases.cancel_children(lease.fence, list(children.values()))
    async with nothing_written(store):
        await engine.leases.cancel_children(lease.fence, list(children.values()))
        await engine.leases.cancel_children(lease.fence, [])


async def test_descendants_of_a_child_cancelled_earlier_are_cancelled_too(engine: Engine) -> None:
    lease = await leased(engine)
    [middle] = (await with_children(engine, lease, "a")).values()
    [kid] = (await with_children(engine, await claim(engine, middle), "kid")).values()
    await engine.operator.cancel(middle)
    await engine.leases.cancel_children(lease.fence, [middle])
    assert await state_of(engine, kid) is State.CANCELLED


async def test_ended_children_and_executions_that_are_no_children_are_not_cancelled(
    engine: Engine, store: TestStore
) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a")
    inner = await claim(engine, children["a"])
    await with_children(engine, inner, "kid")
    await engine.leases.complete(inner.fence, b"done")
    other_lease, unrelated = await leased(engine), await submitted(engine)
    [nephew] = (await with_children(engine, other_lease, "nephew")).values()
    async with nothing_written(store):
        not_children = [unrelated, nephew, lease.execution_id, uuid4()]
        rejected = await engine.leases.cancel_children(lease.fence, [children["a"], *not_children])
    assert rejected == sorted(not_children)
    assert await state_of(engine, children["a"]) is State.COMPLETED


async def test_cancel_children_checks_the_fence_and_the_namespace(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    [kid] = (await with_children(engine, lease, "kid")).values()
    async with nothing_written(store):
        stale = replace(lease.fence, epoch=lease.fence.epoch + 1)
        await refused(engine.leases.cancel_children(stale, [kid]), "stale_lease")
        elsewhere = engine.for_namespace("other").leases.cancel_children(lease.fence, [kid])
        await refused(elsewhere, "execution_not_found", NotFound)
        await refused(engine.leases.cancel_children(lease.fence, ["x"]), "invalid_id", InvalidRequest)
        await refused(engine.leases.cancel_children(lease.fence, kid), "invalid_type", InvalidRequest)  # type: ignore[arg-type]


async def test_execution_waiting_for_a_cancelled_child_resumes(engine: Engine) -> None:
    lease, other_lease = await leased(engine), await leased(engine)
    children = await with_children(engine, lease, "a", "b")
    running = await claim(engine, children["b"])
    await engine.leases.suspend(other_lease.fence, [Child("a", children["a"])])
    await engine.leases.cancel_children(lease.fence, list(children.values()))
    assert await state_of(engine, other_lease.execution_id) is State.WAITING
    waits = await engine.leases.read_waits(lease.fence, {}, list(children.values()))
    assert {outcome.state for outcome in waits.children.values()} == {State.CANCELLED}
    await refused(engine.leases.complete(running.fence, b"late"), "execution_not_active")


async def test_duty_cancels_children_beyond_the_batch_limit(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, lease_ttl="1h")
    children = await with_children(engine, lease, *map(str, range(7)))
    with patch.object(families, "MAX_CANCELLED", 3):
        await engine.leases.cancel_children(lease.fence, list(children.values()), "enough")
    states = [await state_of(engine, id_) for id_ in children.values()]
    assert states.count(State.CANCELLED) == 3
    await engine.reconcilers.tick()
    for id_ in children.values():
        execution = await engine.executions.describe(id_)
        assert (execution.state, execution.cancel_reason) == (State.CANCELLED, "enough")


async def test_children_are_cancelled_before_grandchildren_so_none_starts_more(engine: Engine) -> None:
    lease = await leased(engine, lease_ttl="1h")
    children = await with_children(engine, lease, *map(str, range(5)))
    inner = [await claim(engine, id_) for id_ in children.values()]
    kids = [id_ for child_lease in inner for id_ in (await with_children(engine, child_lease, "kid")).values()]
    with patch.object(families, "MAX_CANCELLED", 5):
        await engine.leases.cancel_children(lease.fence, list(children.values()))
    for child_lease in inner:
        late = engine.leases.submit_children(child_lease.fence, [child("late")])
        await refused(late, "execution_not_active")
    await engine.reconcilers.tick()
    assert {await state_of(engine, id_) for id_ in kids} == {State.CANCELLED}


async def test_flow_fails_if_unawaited_children_of_a_member_are_cancelled(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    lease = await flow.claim("a")
    children = await with_children(engine, lease, "x", "y")
    await engine.leases.cancel_children(lease.fence, list(children.values()))
    await engine.leases.complete(lease.fence, b"")
    await flow.complete("b")
    assert await flow.state() == "failed"
