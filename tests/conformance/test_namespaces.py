"""Tests that every operation treats an id of another namespace as unknown, and that duties serve all namespaces."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid4

from flowfabric.engine import Created, Engine, Fence, FlowFabricError, NotFound, Policy, State, Step, Submission
from flowfabric.engine.events import Events
from flowfabric.engine.executions import Executions
from flowfabric.engine.flows import Flows
from flowfabric.engine.lanes import Lanes
from flowfabric.engine.leases import Leases
from flowfabric.engine.operator import Operator
from flowfabric.engine.signals import Signals
from flowfabric.engine.waitpoints import Waitpoints
from flowfabric.engine.workers import Workers
from flowfabric.testing import VirtualClock
from tests.expectations import error_of, nothing_written, step_retry, taking_part
from tests.scenarios import KEEPING, SITUATIONS, leased, submitted
from tests.stores import TestStore


@dataclass(frozen=True, slots=True)
class Target:
    """The ids, the fence and the grant that the operations are called with."""

    id: UUID
    fence: Fence
    grant: UUID
    waitpoint: UUID
    flow: UUID


# Every operation that takes an id, a fence or a grant, by the name of its method on the engine.
OPERATIONS: dict[str, Callable[[Engine, Target], Awaitable[object]]] = {
    "executions.describe": lambda engine, at: engine.executions.describe(at.id),
    "executions.result": lambda engine, at: engine.executions.result(at.id),
    "executions.peek": lambda engine, at: engine.executions.peek(at.id),
    "executions.wait": lambda engine, at: engine.executions.wait(at.id, timeout="1m"),
    "executions.wait_until": lambda engine, at: engine.executions.wait_until(at.id, lambda _: True),
    "executions.history": lambda engine, at: engine.executions.history(at.id),
    "executions.steps": lambda engine, at: engine.executions.steps(at.id),
    "executions.children": lambda engine, at: engine.executions.children(at.id),
    "executions.set_tags": lambda engine, at: engine.executions.set_tags(at.id, {"team.owner": "eve"}),
    "leases.claim_execution": lambda engine, at: engine.leases.claim_execution(at.id, "eve"),
    "leases.claim_resumed": lambda engine, at: engine.leases.claim_resumed(at.id, "eve"),
    "leases.renew": lambda engine, at: engine.leases.renew(at.fence),
    "leases.renew_many": lambda engine, at: single_outcome(engine.leases.renew_many([at.fence])),
    "leases.progress": lambda engine, at: engine.leases.progress(at.fence, 1),
    "leases.checkpoint": lambda engine, at: engine.leases.checkpoint(at.fence, [Step("a")]),
    "leases.complete": lambda engine, at: engine.leases.complete(at.fence),
    "leases.complete_many": lambda engine, at: single_outcome(engine.leases.complete_many([(at.fence, b"")])),
    "leases.fail": lambda engine, at: engine.leases.fail(at.fence, "bad"),
    "leases.delay": lambda engine, at: engine.leases.delay(at.fence, after="1m"),
    "leases.suspend": lambda engine, at: engine.leases.suspend(at.fence, ["go"]),
    "leases.submit_children": lambda engine, at: engine.leases.submit_children(at.fence, []),
    "leases.wait_children": lambda engine, at: engine.leases.wait_children(at.fence, []),
    "leases.cancel_children": lambda engine, at: engine.leases.cancel_children(at.fence, []),
    "signals.skip": lambda engine, at: engine.signals.skip(at.fence, 1, "late"),
    "leases.read_waits": lambda engine, at: engine.leases.read_waits(at.fence, {"go": 0}),
    "leases.journal": lambda engine, at: engine.leases.journal(at.fence),
    "leases.postpone": lambda engine, at: engine.leases.postpone(at.fence, "diverged", "look at it", version="v"),
    "leases.retry_steps": lambda engine, at: engine.leases.retry_steps(at.fence, *step_retry("a")),
    "leases.hold": lambda engine, at: engine.leases.hold(at.fence, "diverged", "look at it"),
    "leases.continue_with": lambda engine, at: engine.leases.continue_with(at.fence, b"next"),
    "leases.transact": lambda engine, at: engine.leases.transact(at.fence, taking_part(engine), lambda _: Step("t")),
    "flows.add_edge": lambda engine, at: engine.flows.add_edge(at.flow, "a", "b"),
    "flows.seal": lambda engine, at: engine.flows.seal(at.flow),
    "flows.cancel": lambda engine, at: engine.flows.cancel(at.flow),
    "flows.replay": lambda engine, at: engine.flows.replay(at.flow, failed=True),
    "flows.set_tags": lambda engine, at: engine.flows.set_tags(at.flow, {"team.owner": "eve"}),
    "flows.describe": lambda engine, at: engine.flows.describe(at.flow),
    "flows.members": lambda engine, at: engine.flows.members(at.flow),
    "flows.wait": lambda engine, at: engine.flows.wait(at.flow, timeout="1m"),
    "flows.inputs": lambda engine, at: engine.flows.inputs(at.id),
    "leases.release": lambda engine, at: engine.leases.release(at.fence),
    "leases.cancel": lambda engine, at: engine.leases.cancel(at.fence),
    "leases.reclaim": lambda engine, at: engine.leases.reclaim(at.grant, "worker-2"),
    "operator.cancel": lambda engine, at: engine.operator.cancel(at.id),
    "operator.revoke_lease": lambda engine, at: engine.operator.revoke_lease(at.id),
    "operator.grant_reclaim": lambda engine, at: engine.operator.grant_reclaim(at.id, "eve"),
    "operator.change_priority": lambda engine, at: engine.operator.change_priority(at.id, 1),
    "operator.resume": lambda engine, at: engine.operator.resume(at.id),
    "operator.explain": lambda engine, at: engine.operator.explain(at.id),
    "operator.hold": lambda engine, at: engine.operator.hold(at.id),
    "operator.unhold": lambda engine, at: engine.operator.unhold(at.id),
    "operator.replay": lambda engine, at: engine.operator.replay(at.id),
    "waitpoints.create": lambda engine, at: engine.waitpoints.create(at.fence, "go"),
    "waitpoints.declare": lambda engine, at: engine.waitpoints.declare(at.fence, ["go"]),
    "waitpoints.create_many": lambda engine, at: engine.waitpoints.create_many(at.fence, ["go"]),
    "waitpoints.tokens": lambda engine, at: engine.waitpoints.tokens(at.fence, ["go"]),
    "waitpoints.close": lambda engine, at: engine.waitpoints.close(at.waitpoint),
    "waitpoints.list": lambda engine, at: engine.waitpoints.list(at.id),
    "waitpoints.describe": lambda engine, at: engine.waitpoints.describe(at.waitpoint),
    "signals.decide": lambda engine, at: engine.signals.decide(at.waitpoint, "approve"),
    "signals.approve": lambda engine, at: engine.signals.approve(at.id, "early"),
    "signals.send": lambda engine, at: engine.signals.send(at.id, "mail"),
    "signals.list": lambda engine, at: engine.signals.list(at.id),
}
AIMED = {"id", "execution_id", "flow_id", "waitpoint", "waitpoint_id", "fence", "fences", "results", "grant"}
# Submitting operations create the route of their work even if the work is refused.
SUBMITS = {"executions.submit", "flows.submit", "flows.create", "flows.add"}


def test_every_operation_that_takes_an_id_is_listed() -> None:
    assert list_operations() == set(OPERATIONS) | SUBMITS


async def test_foreign_id_is_not_found_like_an_unknown_one(engine: Engine, store: TestStore) -> None:
    foreign = await keep_in_other_namespace(engine)
    unknown = Target(uuid4(), Fence(uuid4(), 1, uuid4()), uuid4(), uuid4(), uuid4())
    async with nothing_written(store):
        for name, operate in OPERATIONS.items():
            foreign_error, unknown_error = (
                await error_of(operate(engine, foreign)),
                await error_of(operate(engine, unknown)),
            )
            assert isinstance(foreign_error, NotFound), name
            assert error_content(foreign_error, foreign) == error_content(unknown_error, unknown), name


async def test_live_foreign_fence_has_no_effect(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine.for_namespace("other"))
    target = Target(lease.execution_id, lease.fence, uuid4(), uuid4(), uuid4())
    async with nothing_written(store):
        for name, operate in OPERATIONS.items():
            assert isinstance(await error_of(operate(engine, target)), NotFound), name
    await engine.for_namespace("other").leases.complete(lease.fence, b"out")


async def test_only_work_of_its_own_namespace_is_claimed_and_held(engine: Engine) -> None:
    other_namespace = engine.for_namespace("other")
    mine, theirs = await submitted(engine), await submitted(other_namespace, priority=9)
    assert (engine.namespace, other_namespace.namespace) == ("default", "other")
    [lease] = await engine.leases.claim(["default"], "worker-1", limit=10)
    assert (lease.execution_id, lease.namespace) == (mine, "default")
    assert [held.execution_id for held in await other_namespace.leases.held("worker-1")] == []
    await engine.operator.unhold_all()
    await other_namespace.operator.hold(theirs)
    assert await engine.operator.unhold_all() == 0
    counts = await engine.executions.count()
    assert {state: count.value for state, count in counts.items() if count.value} == {State.ACTIVE: 1}


async def test_ids_and_keys_do_not_reveal_work_of_another_namespace(engine: Engine) -> None:
    tenant = engine.for_namespace("tenant-b")
    outcomes = await tenant.executions.submit_many([Submission(kind="mail", payload=b"secret", key="once")])
    assert isinstance(outcomes[0], Created)
    error = await error_of(engine.executions.submit("mail", b"secret", id=outcomes[0].id))
    assert error.code == "idempotency_mismatch"
    assert "tenant-b" not in f"{error} {dict(error.fields)}"
    assert isinstance(await engine.executions.submit("mail", b"another", key="once"), Created)
    assert len((await tenant.executions.list()).items) == len((await engine.executions.list()).items) == 1


async def test_duties_serve_all_namespaces(engine: Engine, clock: VirtualClock) -> None:
    engines = [engine, engine.for_namespace("other"), engine.for_namespace("third")]
    delayed = [await submitted(namespaced, delay="10s") for namespaced in engines]
    late = [await submitted(namespaced, policy=Policy(deadline="10s")) for namespaced in engines]
    crashed = [(await leased(namespaced, lease_ttl="10s")).execution_id for namespaced in engines]
    slow = [(await leased(namespaced, policy=Policy(attempt_timeout="10s"))).execution_id for namespaced in engines]
    over = [await SITUATIONS["cancelled"](namespaced, clock) for namespaced in engines]
    clock.advance("10s")
    await engines[2].reconcilers.tick()
    for index, namespaced in enumerate(engines):
        states = [(await namespaced.executions.describe(ids[index])).state for ids in (delayed, late, crashed, slow)]
        assert states == ["waiting", "expired", "waiting", "delayed"], namespaced.namespace
    clock.advance("30d")
    await engine.reconcilers.tick()
    for index, namespaced in enumerate(engines):
        assert isinstance(await error_of(namespaced.executions.describe(over[index])), NotFound), namespaced.namespace


def list_operations() -> set[str]:
    """Return the names of all operations that take an id, a fence or a grant."""
    names = set()
    for group in (Executions, Leases, Flows, Operator, Lanes, Waitpoints, Signals, Workers, Events):
        for name, method in inspect.getmembers(group, inspect.iscoroutinefunction):
            if not name.startswith("_") and AIMED & set(inspect.signature(method).parameters):
                names.add(f"{group.__name__.lower()}.{name}")
    return names


async def keep_in_other_namespace(engine: Engine) -> Target:
    """Return an execution of another namespace that is kept for hand-off, with its lost fence and a reclaim grant."""
    other_namespace = engine.for_namespace("other")
    lease = await leased(other_namespace, policy=replace(KEEPING, max_retries=7), signals=["mail"])
    waitpoint = await other_namespace.waitpoints.create(lease.fence, "early")
    await other_namespace.operator.revoke_lease(lease.execution_id)
    grant = await other_namespace.operator.grant_reclaim(lease.execution_id, "worker-2")
    flow = await other_namespace.flows.create("theirs")
    return Target(lease.execution_id, lease.fence, grant.id, waitpoint.id, flow.flow_id)


async def single_outcome(answers: Awaitable[list[Any]]) -> object:
    """Return the only outcome of a batch. If it is an error, raise it."""
    [outcome] = await answers
    if isinstance(outcome, FlowFabricError):
        raise outcome
    return outcome


def error_content(error: FlowFabricError, target: Target) -> tuple[Any, ...]:
    """Return the class, code, message and field names of an error, with words instead of the ids of the request."""
    message = error.message
    placeholders = {target.id: "the execution", target.fence.execution_id: "the execution", target.grant: "the grant"}
    for id_, placeholder in (placeholders | {target.waitpoint: "the waitpoint", target.flow: "the flow"}).items():
        message = message.replace(str(id_), placeholder)
    return type(error), error.code, message, sorted(error.fields)
