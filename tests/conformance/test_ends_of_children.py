"""A deadline, an attempt timeout that ends the execution, and a cancel end children alike, unless they are detached."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.flows import resolution
from flowfabric.engine import ChildSubmission, Engine, Lease, OnAttemptTimeout, Policy, State, Submission
from flowfabric.ops.flows import descendants as descendants_module
from flowfabric.testing import VirtualClock
from tests.concurrency.flow_soundness import assert_flows_sound
from tests.expectations import event_names, every_write_is_refused, last_event, refused
from tests.flows import child, ended, with_children
from tests.scenarios import leased
from tests.stores import TestStore

DEADLINE = Policy(deadline="1h")
EXPIRES = Policy(attempt_timeout="1h", on_attempt_timeout=OnAttemptTimeout.EXPIRE)
FAILS = Policy(attempt_timeout="1h", max_retries=0)
RETRIES = Policy(attempt_timeout="1h", max_retries=3)
AN_HOUR = timedelta(hours=1)
End = Callable[[Engine, VirtualClock, Lease], Awaitable[object]]


async def pass_an_hour(engine: Engine, clock: VirtualClock, lease: Lease) -> None:
    clock.advance(AN_HOUR)
    await engine.reconcilers.tick()


async def cancel(engine: Engine, clock: VirtualClock, lease: Lease) -> None:
    await engine.operator.cancel(lease.execution_id, "enough", children=True)


async def let_the_grace_pass(engine: Engine, clock: VirtualClock, lease: Lease) -> None:
    await engine.operator.cancel(lease.execution_id, "enough", children=True, grace="1h")
    await pass_an_hour(engine, clock, lease)


ENDS: dict[str, tuple[Policy, End, State]] = {
    "deadline": (DEADLINE, pass_an_hour, State.EXPIRED),
    "attempt timeout that expires it": (EXPIRES, pass_an_hour, State.EXPIRED),
    "attempt timeout that fails it": (FAILS, pass_an_hour, State.FAILED),
    "cancel": (Policy(), cancel, State.CANCELLED),
    "end of the grace": (Policy(), let_the_grace_pass, State.CANCELLED),
}


async def states(engine: Engine, *ids: UUID) -> list[State]:
    return [(await engine.executions.describe(id_)).state for id_ in ids]


@pytest.fixture(params=list(ENDS))
def end(request: pytest.FixtureRequest) -> tuple[Policy, End, State]:
    """Return each way to end a parent: its policy, the function that ends it, and its final state."""
    return ENDS[request.param]


async def test_end_of_a_parent_ends_all_descendants(
    engine: Engine, store: TestStore, clock: VirtualClock, end: tuple[Policy, End, State]
) -> None:
    policy, end_parent, state = end
    parent = await leased(engine, policy=policy, lease_ttl="2h")
    children = await with_children(engine, parent, "done", "busy", "idle")
    await ended(engine, children["done"])
    busy = await engine.leases.claim_execution(children["busy"], "worker-2", lease_ttl="2h")
    grandchildren = await with_children(engine, busy, "x")
    await end_parent(engine, clock, parent)
    assert await states(engine, parent.execution_id, children["done"]) == [state, State.COMPLETED]
    lost = await states(engine, children["busy"], children["idle"], grandchildren["x"])
    # A child that inherited the deadline may also end by that deadline itself.
    assert set(lost) <= {State.CANCELLED, state if policy is DEADLINE else State.CANCELLED}
    await every_write_is_refused(engine, busy.fence, "execution_not_active")
    await assert_flows_sound(store)


async def test_end_of_a_parent_leaves_detached_children(
    engine: Engine, clock: VirtualClock, end: tuple[Policy, End, State]
) -> None:
    policy, end_parent, state = end
    parent = await leased(engine, policy=policy, lease_ttl="2h")
    detached = ChildSubmission("free", Submission(kind="job"), detached=True)
    [free] = await engine.leases.submit_children(parent.fence, [detached])
    await end_parent(engine, clock, parent)
    assert await states(engine, parent.execution_id, free.id) == [state, State.WAITING]
    assert (await engine.executions.describe(free.id)).deadline_at is None


async def test_attempt_timeout_that_is_retried_leaves_the_children(engine: Engine, clock: VirtualClock) -> None:
    parent = await leased(engine, policy=RETRIES, lease_ttl="2h")
    children = await with_children(engine, parent, "a")
    await pass_an_hour(engine, clock, parent)
    assert await states(engine, parent.execution_id, children["a"]) == [State.DELAYED, State.WAITING]


async def test_failure_and_completion_leave_the_children(engine: Engine) -> None:
    for give_up in (engine.leases.complete, lambda fence: engine.leases.fail(fence, "no", failure_class="permanent")):
        parent = await leased(engine)
        children = await with_children(engine, parent, "a")
        await give_up(parent.fence)
        assert await states(engine, children["a"]) == [State.WAITING]


async def test_children_of_a_waiting_parent_end_with_its_deadline(engine: Engine, clock: VirtualClock) -> None:
    parent = await leased(engine, policy=DEADLINE)
    children = await with_children(engine, parent, "a")
    await engine.leases.wait_children(parent.fence, list(children.values()))
    clock.advance(AN_HOUR)
    await engine.reconcilers.tick()
    assert (await states(engine, parent.execution_id))[0] is State.EXPIRED
    assert (await states(engine, children["a"]))[0].is_terminal


async def test_event_and_explanation_of_an_ended_child_name_the_reason(engine: Engine, clock: VirtualClock) -> None:
    parent = await leased(engine, policy=EXPIRES, lease_ttl="2h")
    children = await with_children(engine, parent, "a")
    await pass_an_hour(engine, clock, parent)
    event = await last_event(engine, children["a"])
    assert (event.family, event.name, event.principal) == ("completion", "cancelled", "engine")
    assert event.details == {"source": "attempt_timeout", "cause": "parent", "parent": str(parent.execution_id)}
    explanation = await engine.operator.explain(children["a"])
    assert f"because its parent {parent.execution_id} ended: the attempt exceeded its timeout" in explanation.sentence


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, timedelta(minutes=50)),
        ({"policy": Policy(deadline="2h")}, timedelta(minutes=50)),
        ({"policy": Policy(deadline="20m")}, timedelta(minutes=20)),
    ],
    ids=["none", "later", "earlier"],
)
async def test_child_inherits_the_rest_of_the_deadline_unless_its_own_is_earlier(
    engine: Engine, clock: VirtualClock, own: dict[str, Any], expected: timedelta
) -> None:
    parent = await leased(engine, policy=DEADLINE, lease_ttl="2h")
    clock.advance("10m")
    [created] = await engine.leases.submit_children(parent.fence, [child("a", **own)])
    view = await engine.executions.describe(created.id)
    assert view.deadline_at == clock.now() + expected


async def test_child_inherits_an_earlier_absolute_deadline_only(engine: Engine, clock: VirtualClock) -> None:
    parent = await leased(engine, policy=DEADLINE, lease_ttl="2h")
    soon, late = clock.now() + timedelta(minutes=5), clock.now() + timedelta(days=1)
    submissions = [child("soon", deadline=soon), child("late", deadline=late)]
    results = await engine.leases.submit_children(parent.fence, submissions)
    views = [await engine.executions.describe(result.id) for result in results]
    assert [view.deadline_at for view in views] == [soon, clock.now() + AN_HOUR]


async def test_repeated_submit_with_another_rest_of_the_deadline_is_the_same_child(
    engine: Engine, clock: VirtualClock
) -> None:
    parent = await leased(engine, policy=DEADLINE, lease_ttl="2h")
    children = await with_children(engine, parent, "a")
    clock.advance("10m")
    [again] = await engine.leases.submit_children(parent.fence, [child("a")])
    assert again.id == children["a"]


@pytest.mark.parametrize("ways", ["attempt timeout that expires it", "end of the grace"])
async def test_descendants_beyond_the_batch_are_ended_by_the_reconciler(
    engine: Engine, store: TestStore, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, ways: str
) -> None:
    monkeypatch.setattr(resolution, "MAX_CANCELLED", 3)
    monkeypatch.setattr(descendants_module, "MAX_CANCELLED", 3)
    policy, end_parent, _ = ENDS[ways]
    parent = await leased(engine, policy=policy, lease_ttl="2h")
    children = await with_children(engine, parent, *"abcdefgh")
    await end_parent(engine, clock, parent)
    await engine.reconcilers.tick()
    assert set(await states(engine, *children.values())) == {State.CANCELLED}
    for id_ in children.values():
        assert (await event_names(engine, id_)).count("completion.cancelled") == 1
    await assert_flows_sound(store)


async def test_child_submitted_during_the_grace_ends_with_its_parent(engine: Engine, clock: VirtualClock) -> None:
    parent = await leased(engine, lease_ttl="2h")
    await engine.operator.cancel(parent.execution_id, "enough", children=True, grace="1h")
    children = await with_children(engine, parent, "late")
    await pass_an_hour(engine, clock, parent)
    assert await states(engine, parent.execution_id, children["late"]) == [State.CANCELLED] * 2
    await refused(engine.leases.submit_children(parent.fence, [child("too late")]), "execution_not_active")


async def test_cancel_without_children_spares_them_also_after_the_grace(engine: Engine, clock: VirtualClock) -> None:
    parent = await leased(engine, lease_ttl="2h")
    children = await with_children(engine, parent, "a")
    await engine.operator.cancel(parent.execution_id, "enough", grace="1h")
    await pass_an_hour(engine, clock, parent)
    assert await states(engine, parent.execution_id, children["a"]) == [State.CANCELLED, State.WAITING]
