"""cancel_children: the holder of a lease ends children of its execution, many in one fenced commit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid4

import pytest

from flowfabric.engine import Child, Engine, InvalidRequest, Lease, NotFound, State, Step
from flowfabric.ops import families
from flowfabric.testing import VirtualClock
from tests.facts import nothing_written, refused
from tests.flows import built, child, claimable, with_children
from tests.scenarios import leased, submitted
from tests.stores import TestStore

Arrange = Callable[[Engine, Lease], Awaitable[object]]


async def claimed(engine: Engine, id_: UUID) -> Lease:
    return await engine.leases.claim_execution(id_, "worker-2")


async def state_of(engine: Engine, id_: UUID) -> State:
    return (await engine.executions.describe(id_)).state


async def nothing(engine: Engine, lease: Lease) -> None:
    """It runs."""


async def suspend(engine: Engine, lease: Lease) -> None:
    await engine.leases.suspend(lease.fence, ["go"])


async def retry(engine: Engine, lease: Lease) -> None:
    await engine.leases.fail(lease.fence, "not yet")


async def rest(engine: Engine, lease: Lease) -> None:
    await engine.leases.delay(lease.fence, after="1h", steps=[Step("one")])


async def have_a_child(engine: Engine, lease: Lease) -> None:
    await with_children(engine, lease, "kid")


async def wait_for_a_child(engine: Engine, lease: Lease) -> None:
    [kid] = (await with_children(engine, lease, "kid")).values()
    await engine.leases.wait_children(lease.fence, [kid])


async def facts(engine: Engine, id_: UUID) -> list[Any]:
    """All that is told of an execution and its children, without what must differ between two of them."""
    found = await engine.executions.describe(id_)
    history = await engine.executions.history(id_)
    events = [
        (event.family, event.name, event.state, event.worker, event.epoch, event.version, event.ends_lease,
         event.principal, event.reason, (event.details or {}).get("source"), (event.details or {}).get("cause"))
        for event in history
    ]  # fmt: skip
    kids = await engine.executions.children(id_)
    waitpoints = await engine.waitpoints.list(id_)
    shown = (
        found.state, found.epoch, found.version, found.attempt_index, found.ended_at, found.cancelled_by,
        found.cancel_reason, found.suspension, [(item.key, item.state) for item in waitpoints],
        await engine.executions.result(id_),
    )  # fmt: skip
    return [shown, events, *[await facts(engine, kid.id) for kid in kids]]


@pytest.mark.parametrize("arrange", [nothing, suspend, retry, rest, have_a_child, wait_for_a_child])
async def test_one_of_many_ends_as_one_alone_does(engine: Engine, clock: VirtualClock, arrange: Arrange) -> None:
    lease = await leased(engine, lease_ttl="1h")
    children = await with_children(engine, lease, "alone", "together", "new", "unclaimed")
    for name in ("alone", "together"):
        await arrange(engine, await claimed(engine, children[name]))
    clock.advance("1s")
    await engine.operator.cancel(children["alone"], "enough", children=True)
    await engine.operator.cancel(children["new"], "enough", children=True)
    await engine.leases.cancel_children(lease.fence, [children["together"], str(children["unclaimed"])], "enough")
    assert await facts(engine, children["together"]) == await facts(engine, children["alone"])
    assert await facts(engine, children["unclaimed"]) == await facts(engine, children["new"])
    assert await state_of(engine, children["together"]) is State.CANCELLED


async def test_what_a_child_has_started_is_cancelled_with_it_and_its_siblings_are_not(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b")
    inner = await claimed(engine, children["a"])
    [kid] = (await with_children(engine, inner, "kid")).values()
    deep = await claimed(engine, kid)
    [grandkid] = (await with_children(engine, deep, "kid")).values()
    await engine.leases.cancel_children(lease.fence, [children["a"]])
    for id_ in (children["a"], kid, grandkid):
        assert await state_of(engine, id_) is State.CANCELLED
    last = (await engine.executions.history(grandkid))[-1]
    assert last.details == {"source": "operator_override", "cause": "parent", "parent": str(children["a"])}
    assert await claimable(engine) == {children["b"]}
    await refused(engine.leases.renew(inner.fence), "execution_not_active")


async def test_repeated_it_writes_nothing(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b")
    await engine.leases.cancel_children(lease.fence, list(children.values()))
    async with nothing_written(store):
        await engine.leases.cancel_children(lease.fence, list(children.values()))
        await engine.leases.cancel_children(lease.fence, [])


async def test_what_one_has_started_that_was_cancelled_before_without_it_is_cancelled_too(engine: Engine) -> None:
    lease = await leased(engine)
    [middle] = (await with_children(engine, lease, "a")).values()
    [kid] = (await with_children(engine, await claimed(engine, middle), "kid")).values()
    await engine.operator.cancel(middle)
    await engine.leases.cancel_children(lease.fence, [middle])
    assert await state_of(engine, kid) is State.CANCELLED


async def test_who_has_ended_and_who_is_no_child_stays_as_it_is(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a")
    inner = await claimed(engine, children["a"])
    await with_children(engine, inner, "kid")
    await engine.leases.complete(inner.fence, b"done")
    other, stranger = await leased(engine), await submitted(engine)
    [nephew] = (await with_children(engine, other, "nephew")).values()
    async with nothing_written(store):
        strangers = [stranger, nephew, lease.execution_id, uuid4()]
        answer = await engine.leases.cancel_children(lease.fence, [children["a"], *strangers])
    assert answer == sorted(strangers)
    assert await state_of(engine, children["a"]) is State.COMPLETED


async def test_it_is_fenced_and_knows_its_namespace(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    [kid] = (await with_children(engine, lease, "kid")).values()
    async with nothing_written(store):
        stale = replace(lease.fence, epoch=lease.fence.epoch + 1)
        await refused(engine.leases.cancel_children(stale, [kid]), "stale_lease")
        elsewhere = engine.within("other").leases.cancel_children(lease.fence, [kid])
        await refused(elsewhere, "execution_not_found", NotFound)
        await refused(engine.leases.cancel_children(lease.fence, ["x"]), "invalid_id", InvalidRequest)
        await refused(engine.leases.cancel_children(lease.fence, kid), "invalid_type", InvalidRequest)  # type: ignore[arg-type]


async def test_whoever_waits_for_the_end_of_one_is_told(engine: Engine) -> None:
    lease, other = await leased(engine), await leased(engine)
    children = await with_children(engine, lease, "a", "b")
    running = await claimed(engine, children["b"])
    await engine.leases.suspend(other.fence, [Child("a", children["a"])])
    await engine.leases.cancel_children(lease.fence, list(children.values()))
    assert await state_of(engine, other.execution_id) is State.WAITING
    look = await engine.leases.look(lease.fence, {}, list(children.values()))
    assert {outcome.state for outcome in look.children.values()} == {State.CANCELLED}
    await refused(engine.leases.complete(running.fence, b"late"), "execution_not_active")


async def test_of_very_many_the_rest_is_cancelled_by_a_duty(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, lease_ttl="1h")
    children = await with_children(engine, lease, *map(str, range(7)))
    with patch.object(families, "MOST_CANCELLED", 3):
        await engine.leases.cancel_children(lease.fence, list(children.values()), "enough")
    states = [await state_of(engine, id_) for id_ in children.values()]
    assert states.count(State.CANCELLED) == 3
    await engine.reconcilers.tick()
    for id_ in children.values():
        found = await engine.executions.describe(id_)
        assert (found.state, found.cancel_reason) == (State.CANCELLED, "enough")


async def test_of_very_many_the_children_come_first_so_that_none_starts_more(engine: Engine) -> None:
    lease = await leased(engine, lease_ttl="1h")
    children = await with_children(engine, lease, *map(str, range(5)))
    inner = [await claimed(engine, id_) for id_ in children.values()]
    kids = [id_ for item in inner for id_ in (await with_children(engine, item, "kid")).values()]
    with patch.object(families, "MOST_CANCELLED", 5):
        await engine.leases.cancel_children(lease.fence, list(children.values()))
    for item in inner:
        late = engine.leases.submit_children(item.fence, [child("late")])
        await refused(late, "execution_not_active")
    await engine.reconcilers.tick()
    assert {await state_of(engine, id_) for id_ in kids} == {State.CANCELLED}


async def test_nobody_waited_for_them_so_their_flow_has_not_ended_well(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    lease = await flow.claim("a")
    children = await with_children(engine, lease, "x", "y")
    await engine.leases.cancel_children(lease.fence, list(children.values()))
    await engine.leases.complete(lease.fence, b"")
    await flow.complete("b")
    assert await flow.state() == "failed"
