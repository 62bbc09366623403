"""Tests of child bindings, which turn the end of a child into a signal for its parent's condition."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from flowfabric.engine import (
    AllOf,
    AnyOf,
    Child,
    Count,
    Engine,
    NewWaitpoint,
    NotFound,
    Satisfied,
    Single,
    Suspended,
    Timer,
)
from flowfabric.testing import VirtualClock
from tests.expectations import nothing_written, refused
from tests.flows import ended, with_children
from tests.scenarios import leased
from tests.stores import TestStore

OUTCOMES = ("completed", "failed", "cancelled")


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_end_of_a_child_resumes_its_parent_with_a_signal_named_after_the_outcome(
    engine: Engine, outcome: str
) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a")
    result = await engine.leases.suspend(lease.fence, [Child("kid", children["a"])])
    assert isinstance(result, Suspended)
    await ended(engine, children["a"], outcome)
    assert (await engine.executions.describe(lease.execution_id)).state == "waiting"
    assert [signal.name for signal in await engine.signals.list(lease.execution_id)] == [outcome]


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_child_that_has_already_ended_counts_immediately(engine: Engine, outcome: str) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a")
    await ended(engine, children["a"], outcome)
    result = await engine.leases.suspend(lease.fence, [Child("kid", children["a"])])
    assert isinstance(result, Satisfied)
    assert [signal.name for signal in result.signals] == [outcome]
    await engine.leases.complete(lease.fence, b"")


async def test_condition_may_require_an_outcome(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b")
    condition = AnyOf([Single("a", "completed"), Single("b", "completed")])
    bindings = [Child("a", children["a"]), Child("b", children["b"])]
    await engine.leases.suspend(lease.fence, bindings, condition)
    await ended(engine, children["a"], "failed")
    assert (await engine.executions.describe(lease.execution_id)).state == "suspended"
    await ended(engine, children["b"])
    assert (await engine.executions.describe(lease.execution_id)).state == "waiting"


async def test_one_condition_can_combine_people_children_and_timers(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a")
    bindings: list[Any] = [
        Child("kid", children["a"]),
        NewWaitpoint("boss"),
        Timer("alarm", clock.now() + timedelta(hours=1)),
    ]
    condition = AllOf([Single("kid"), Single("boss"), Single("alarm")])
    outcome = await engine.leases.suspend(lease.fence, bindings, condition)
    assert isinstance(outcome, Suspended)
    token = outcome.token("boss")
    assert token is not None
    await ended(engine, children["a"])
    await engine.signals.deliver(token, "yes")
    assert (await engine.executions.describe(lease.execution_id)).state == "suspended"
    clock.advance("1h")
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(lease.execution_id)).state == "waiting"


async def test_count_condition_counts_children(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b", "c")
    bindings = [Child(key, id_) for key, id_ in children.items()]
    await engine.leases.suspend(lease.fence, bindings, Count(2, "waitpoints", list(children)))
    await ended(engine, children["c"])
    assert (await engine.executions.describe(lease.execution_id)).state == "suspended"
    await ended(engine, children["a"], "failed")
    assert (await engine.executions.describe(lease.execution_id)).state == "waiting"


async def test_child_binding_has_no_token(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a")
    outcome = await engine.leases.suspend(lease.fence, [Child("kid", children["a"])])
    assert isinstance(outcome, Suspended)
    assert outcome.token("kid") is None


async def test_unknown_child_is_not_found(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    async with nothing_written(store):
        await refused(engine.leases.suspend(lease.fence, [Child("kid", uuid4())]), "child_not_found", NotFound)


async def test_child_that_ends_after_the_wait_changes_nothing(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b")
    bindings = [Child("a", children["a"]), Child("b", children["b"])]
    await engine.leases.suspend(lease.fence, bindings, AnyOf([Single("a"), Single("b")]))
    await ended(engine, children["a"])
    before = await engine.executions.describe(lease.execution_id)
    await ended(engine, children["b"])
    assert await engine.executions.describe(lease.execution_id) == before


async def test_ended_parent_receives_no_signal_of_its_child(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a")
    await engine.leases.suspend(lease.fence, [Child("kid", children["a"])])
    await engine.operator.cancel(lease.execution_id, "enough")
    before = await engine.executions.describe(lease.execution_id)
    await ended(engine, children["a"])
    assert await engine.executions.describe(lease.execution_id) == before
