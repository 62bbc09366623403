"""Child bindings: the end of a child is a signal in its parent's condition, beside people and time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from flowfabric.engine import AllOf, AnyOf, Child, Count, Engine, Fresh, NotFound, Satisfied, Single, Suspended, Timer
from flowfabric.testing import VirtualClock
from tests.facts import nothing_written, refused
from tests.flows import ended, with_children
from tests.scenarios import leased
from tests.stores import TestStore

OUTCOMES = ("completed", "failed", "cancelled")


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_the_end_of_a_child_resumes_its_parent_with_a_signal_of_its_outcome(engine: Engine, outcome: str) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a")
    answer = await engine.leases.suspend(lease.fence, [Child("kid", children["a"])])
    assert isinstance(answer, Suspended)
    await ended(engine, children["a"], outcome)
    assert (await engine.executions.describe(lease.execution_id)).state == "waiting"
    assert [signal.name for signal in await engine.signals.observe(lease.execution_id)] == [outcome]


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_a_child_that_has_ended_counts_at_once(engine: Engine, outcome: str) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a")
    await ended(engine, children["a"], outcome)
    answer = await engine.leases.suspend(lease.fence, [Child("kid", children["a"])])
    assert isinstance(answer, Satisfied)
    assert [signal.name for signal in answer.signals] == [outcome]
    await engine.leases.complete(lease.fence, b"")


async def test_a_condition_may_ask_for_an_outcome(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b")
    condition = AnyOf([Single("a", "completed"), Single("b", "completed")])
    bindings = [Child("a", children["a"]), Child("b", children["b"])]
    await engine.leases.suspend(lease.fence, bindings, condition)
    await ended(engine, children["a"], "failed")
    assert (await engine.executions.describe(lease.execution_id)).state == "suspended"
    await ended(engine, children["b"])
    assert (await engine.executions.describe(lease.execution_id)).state == "waiting"


async def test_people_children_and_time_are_members_of_one_condition(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a")
    bindings: list[Any] = [Child("kid", children["a"]), Fresh("boss"), Timer("alarm", clock.now() + timedelta(hours=1))]
    condition = AllOf([Single("kid"), Single("boss"), Single("alarm")])
    answer = await engine.leases.suspend(lease.fence, bindings, condition)
    assert isinstance(answer, Suspended)
    token = answer.token("boss")
    assert token is not None
    await ended(engine, children["a"])
    await engine.signals.deliver(token, "yes")
    assert (await engine.executions.describe(lease.execution_id)).state == "suspended"
    clock.advance("1h")
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(lease.execution_id)).state == "waiting"


async def test_a_count_of_children(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b", "c")
    bindings = [Child(key, id_) for key, id_ in children.items()]
    await engine.leases.suspend(lease.fence, bindings, Count(2, "waitpoints", list(children)))
    await ended(engine, children["c"])
    assert (await engine.executions.describe(lease.execution_id)).state == "suspended"
    await ended(engine, children["a"], "failed")
    assert (await engine.executions.describe(lease.execution_id)).state == "waiting"


async def test_a_child_cannot_be_signalled_from_outside(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a")
    answer = await engine.leases.suspend(lease.fence, [Child("kid", children["a"])])
    assert isinstance(answer, Suspended)
    assert answer.token("kid") is None


async def test_a_stranger_is_not_found(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    async with nothing_written(store):
        await refused(engine.leases.suspend(lease.fence, [Child("kid", uuid4())]), "child_not_found", NotFound)


async def test_news_of_a_child_after_the_wait_change_nothing(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b")
    bindings = [Child("a", children["a"]), Child("b", children["b"])]
    await engine.leases.suspend(lease.fence, bindings, AnyOf([Single("a"), Single("b")]))
    await ended(engine, children["a"])
    before = await engine.executions.describe(lease.execution_id)
    await ended(engine, children["b"])
    assert await engine.executions.describe(lease.execution_id) == before


async def test_a_parent_that_has_ended_hears_nothing(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a")
    await engine.leases.suspend(lease.fence, [Child("kid", children["a"])])
    await engine.operator.cancel(lease.execution_id, "enough")
    before = await engine.executions.describe(lease.execution_id)
    await ended(engine, children["a"])
    assert await engine.executions.describe(lease.execution_id) == before
