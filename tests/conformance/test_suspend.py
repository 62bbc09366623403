"""Tests of suspend, which gives up the lease until signals satisfy a condition, or keeps it if they already do."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from flowfabric.core.executions.outcomes import Satisfied
from flowfabric.core.waits.records import BLOCKING
from flowfabric.engine import (
    Accepted,
    AllOf,
    AnyOf,
    BlockingReason,
    Condition,
    Conflict,
    Count,
    Counted,
    Engine,
    InvalidRequest,
    Lease,
    NewWaitpoint,
    NotFound,
    OnTimeout,
    OperatorOnly,
    PendingWaitpoint,
    PublicState,
    Single,
    StandingWaitpoint,
    State,
    Step,
    Suspended,
    SuspensionReason,
    TimeoutOnly,
    Timer,
    WaitpointState,
)
from flowfabric.testing import VirtualClock
from tests.expectations import every_write_is_refused, last_event, nothing_written, refused
from tests.scenarios import early, leased, suspended
from tests.stores import TestStore


async def claim_resumed(engine: Engine, lease: Lease) -> Lease:
    """Claim the resumed execution."""
    return await engine.leases.claim_resumed(lease.execution_id, "worker-2")


async def test_suspended_execution_has_no_lease_and_shows_its_condition(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, tags={"a.b": "c"})
    clock.advance("1s")
    wait = await suspended(engine, ["manager"], Single("manager", "approved"), lease=lease, timeout="1h")
    execution = await engine.executions.describe(wait.id)
    assert (execution.state, execution.lease, execution.epoch, execution.version) == (
        State.SUSPENDED,
        None,
        lease.epoch + 1,
        2,
    )
    assert execution.vector.public_state is PublicState.SUSPENDED
    assert execution.vector.lifecycle_phase.value == "suspended"
    assert execution.vector.attempt_state.value == "attempt_interrupted"
    assert execution.vector.blocking_reason is BlockingReason.WAITING_FOR_SIGNAL
    assert (execution.attempt_index, execution.attempts, execution.changed_at) == (0, (), clock.now())
    assert execution.suspension is not None
    assert (execution.suspension.id, execution.suspension.condition) == (wait.suspension, Single("manager", "approved"))
    assert execution.suspension.missing == ('signal "approved" on waitpoint "manager"',)
    assert execution.suspension.timeout_at == clock.now() + timedelta(hours=1)
    [waitpoint] = execution.waitpoints
    assert (waitpoint.id, waitpoint.key, waitpoint.state, waitpoint.names) == (
        wait.waitpoint("manager"),
        "manager",
        WaitpointState.ACTIVE,
        ("approved",),
    )
    event = await last_event(engine, wait.id)
    assert (event.family, event.name, event.ends_lease, event.version) == ("lease", "suspended", True, 2)
    assert (event.lease_id, event.worker, event.tags) == (lease.fence.lease_id, lease.worker, {"a.b": "c"})
    assert event.details is not None
    assert event.details["suspension"] == str(wait.suspension)


async def test_fence_that_gave_up_the_lease_is_refused_in_every_write(engine: Engine, clock: VirtualClock) -> None:
    wait = await suspended(engine)
    await every_write_is_refused(engine, wait.lease.fence, "execution_not_active")
    await engine.signals.deliver(wait.token(), "go")
    await every_write_is_refused(engine, wait.lease.fence, "execution_not_active")
    later = await claim_resumed(engine, wait.lease)
    assert later.epoch == wait.lease.epoch + 2
    assert later.fence.lease_id != wait.lease.fence.lease_id
    await every_write_is_refused(engine, wait.lease.fence, "execution_not_active")


async def test_suspended_execution_is_neither_claimed_nor_held(engine: Engine) -> None:
    wait = await suspended(engine)
    assert await engine.leases.claim(["default"], "worker-2", limit=10) == []
    assert await engine.leases.held("worker-1") == []
    await refused(engine.leases.claim_execution(wait.id, "worker-2"), "execution_not_leaseable")
    await refused(engine.leases.claim_resumed(wait.id, "worker-2"), "not_a_resumed_execution")


@pytest.mark.parametrize("reason", SuspensionReason)
async def test_every_reason_has_its_own_blocking_reason(engine: Engine, reason: SuspensionReason) -> None:
    wait = await suspended(engine, reason=reason.value)
    execution = await engine.executions.describe(wait.id)
    assert execution.vector.blocking_reason is BLOCKING[reason]
    assert execution.suspension is not None
    assert execution.suspension.reason is reason


async def test_steps_are_recorded_with_the_suspension(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    await engine.leases.checkpoint(lease.fence, [Step("one", b"1")])
    wait = await suspended(engine, lease=lease, key="wait-1", steps=[Step("two", b"2"), Step("wait-1", b"k")])
    assert [step.name for step in await engine.executions.steps(wait.id)] == ["one", "two", "wait-1"]
    other_lease = await leased(engine)
    await engine.leases.checkpoint(other_lease.fence, [Step("one", b"1")])
    async with nothing_written(store):
        conflicting = engine.leases.suspend(other_lease.fence, ["go"], steps=[Step("new"), Step("one", b"another")])
        await refused(conflicting, "step_already_recorded", Conflict)
    await engine.leases.checkpoint(other_lease.fence, [Step("two", b"2")])


async def test_steps_are_recorded_when_the_wait_is_satisfied_immediately(engine: Engine) -> None:
    lease = await leased(engine)
    early = await engine.waitpoints.create(lease.fence, "go")
    await engine.signals.deliver(early.token or "", "go")
    outcome = await engine.leases.suspend(lease.fence, [PendingWaitpoint("go")], steps=[Step("wait")])
    assert isinstance(outcome, Satisfied)
    assert [step.name for step in await engine.executions.steps(lease.execution_id)] == ["wait"]
    await engine.leases.checkpoint(lease.fence, [Step("next")])
    assert [step.seq for step in await engine.executions.steps(lease.execution_id)] == [1, 2]


async def test_concurrent_suspends_return_one_outcome_each(engine: Engine, store: TestStore) -> None:
    leases = [await leased(engine) for _ in range(8)]
    stale = await leased(engine)
    await engine.operator.revoke_lease(stale.execution_id)
    conflicting = await leased(engine)
    await engine.leases.checkpoint(conflicting.fence, [Step("one", b"1")])
    calls = [engine.leases.suspend(lease.fence, ["go"], key="k") for lease in leases]
    calls.append(engine.leases.suspend(stale.fence, ["go"]))
    calls.append(engine.leases.suspend(conflicting.fence, ["go"], steps=[Step("one", b"other")]))
    *outcomes, revoked, conflict = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(outcome, Suspended) for outcome in outcomes)
    assert getattr(revoked, "code", None) == "lease_revoked"
    assert getattr(conflict, "code", None) == "step_already_recorded"
    tokens = {outcome.token("go") for outcome in outcomes if isinstance(outcome, Suspended)}
    assert len(tokens) == len(leases), "no two executions share a token"
    assert (await engine.executions.describe(conflicting.execution_id)).state is State.ACTIVE


async def test_concurrent_suspends_with_steps_refuse_only_the_conflicting_one(
    engine: Engine,
) -> None:
    leases = [await leased(engine, signals=["go"]) for _ in range(6)]
    early, conflicting = leases[:3], leases[-1]
    for index, lease in enumerate(early):
        await engine.signals.send(lease.execution_id, "go", b"%d" % index)
    await engine.leases.checkpoint(conflicting.fence, [Step("wait", b"before")])
    *outcomes, refusal = await asyncio.gather(
        *(
            engine.leases.suspend(lease.fence, [StandingWaitpoint("go")], steps=[Step("wait", b"%d" % index)])
            for index, lease in enumerate(leases)
        ),
        return_exceptions=True,
    )
    assert getattr(refusal, "code", None) == "step_already_recorded"
    for index, (lease, outcome) in enumerate(zip(leases, outcomes, strict=False)):
        [step] = await engine.executions.steps(lease.execution_id)
        assert (step.name, step.payload, step.seq) == ("wait", b"%d" % index, 1)
        if lease in early:
            assert isinstance(outcome, Satisfied)
            assert [signal.payload for signal in outcome.signals] == [b"%d" % index]
        else:
            assert isinstance(outcome, Suspended)
    assert (await engine.executions.describe(conflicting.execution_id)).state is State.ACTIVE


async def test_condition_must_match_its_bindings(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    lease = await leased(engine)
    deep: Any = Single("a")
    for _ in range(4):
        deep = AllOf([deep])
    cases: list[tuple[str, list[Any], Any, dict[str, Any]]] = [
        ("waitpoint_not_bound", ["a"], AllOf([Single("a"), Single("b")]), {}),
        ("waitpoint_not_used", ["a", "b"], Single("a"), {}),
        ("timeout_only_without_deadline", [], TimeoutOnly(), {}),
        ("timeout_only_without_deadline", ["a"], AnyOf([Single("a"), TimeoutOnly()]), {}),
        ("invalid_request", ["a", NewWaitpoint("a")], Single("a"), {}),
        ("invalid_request", ["a"], None, {"timeout": 1, "timeout_at": clock.now()}),
        ("timeout_at_in_past", ["a"], None, {"timeout_at": clock.now() - timedelta(minutes=11)}),
        ("count_exceeds_sources", [NewWaitpoint("a", "ada")], Count(2, "sources", ["a"]), {}),
        ("too_many_waitpoints", [f"k{number}" for number in range(65)], OperatorOnly(), {}),
    ]
    async with nothing_written(store):
        for code, waitpoints, condition, options in cases:
            await refused(engine.leases.suspend(lease.fence, waitpoints, condition, **options), code, InvalidRequest)
    assert isinstance(await engine.leases.suspend(lease.fence, ["a"], deep), Suspended)


async def test_sixty_four_waitpoints_can_be_bound(engine: Engine) -> None:
    keys = [f"k{number:02}" for number in range(64)]
    wait = await suspended(engine, keys, Count(64, "waitpoints", keys))
    for key in keys[:-1]:
        await engine.signals.deliver(wait.token(key), "go")
    assert (await engine.executions.describe(wait.id)).state is State.SUSPENDED
    outcome = await engine.signals.deliver(wait.token(keys[-1]), "go")
    assert getattr(outcome, "counted", None) is Counted.YES
    assert (await engine.executions.describe(wait.id)).state is State.WAITING


async def test_pending_or_standing_waitpoint_must_be_open_and_of_this_execution(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    other_lease = await leased(engine)
    await engine.waitpoints.create(other_lease.fence, "foreign")
    lease = await leased(engine)
    closed = await engine.waitpoints.create(lease.fence, "closed")
    await engine.waitpoints.close(closed.id)
    await engine.waitpoints.create(lease.fence, "expired", expires="1s")
    clock.advance("1s")
    async with nothing_written(store):
        for key in ("missing", "foreign", "closed", "expired"):
            call = engine.leases.suspend(lease.fence, [PendingWaitpoint(key)])
            await refused(call, "waitpoint_not_found", NotFound)
        await refused(engine.leases.suspend(lease.fence, [StandingWaitpoint("mail")]), "waitpoint_not_found", NotFound)


async def test_open_key_of_another_kind_is_refused(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine, signals=["mail"])
    await engine.waitpoints.create(lease.fence, "ada", approver="ada")
    soon = lease.expires_at
    async with nothing_written(store):
        for binding in (
            NewWaitpoint("mail"),
            PendingWaitpoint("mail"),
            Timer("mail", soon),
            StandingWaitpoint("ada"),
            Timer("ada", soon),
        ):
            await refused(engine.leases.suspend(lease.fence, [binding]), "waitpoint_already_exists", Conflict)
        other_approver = engine.leases.suspend(lease.fence, [NewWaitpoint("ada", approver="bob")])
        await refused(other_approver, "waitpoint_already_exists", Conflict)


async def test_new_binding_of_an_open_key_uses_the_existing_waitpoint(engine: Engine) -> None:
    lease = await leased(engine)
    early = await engine.waitpoints.create(lease.fence, "go", expires="1h")
    wait = await suspended(engine, ["go"], lease=lease)
    assert (wait.waitpoint(), wait.token()) == (early.id, early.token)


async def test_expiry_of_a_pending_waitpoint_becomes_the_timeout_or_none(engine: Engine, clock: VirtualClock) -> None:
    for timeout, expected in (("2h", clock.now() + timedelta(hours=2)), (None, None)):
        lease = await leased(engine)
        await engine.waitpoints.create(lease.fence, "go", expires="1m")
        wait = await suspended(engine, [PendingWaitpoint("go")], lease=lease, timeout=timeout)
        [open_waitpoint] = wait.answer.waitpoints
        assert open_waitpoint.expires_at == expected
        [waitpoint] = await engine.waitpoints.list(wait.id)
        assert waitpoint.expires_at == expected
        clock.advance("1m")
        await engine.reconcilers.tick()
        await engine.signals.deliver(wait.token(), "go")
        assert (await engine.executions.describe(wait.id)).state is State.WAITING


async def test_timeout_only_wait_needs_no_waitpoint_and_creates_no_key(engine: Engine) -> None:
    wait = await suspended(engine, [], TimeoutOnly(), timeout="1h")
    assert wait.answer.waitpoints == ()
    await suspended(engine, [])
    assert await engine.keys.list() == ()


async def test_pending_waitpoint_keeps_its_token_and_foreign_or_expired_ones_are_not_found(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    lease, other_lease = await leased(engine), await leased(engine)
    foreign_token = await early(engine, other_lease, "theirs")
    own_token = await early(engine, lease, "mine")
    await engine.waitpoints.create(lease.fence, "brief", expires="1s")
    clock.advance("1s")
    async with nothing_written(store):
        for key in ("missing", "theirs", "brief"):
            call = engine.leases.suspend(lease.fence, [PendingWaitpoint(key)])
            await refused(call, "waitpoint_not_found", NotFound)
    await engine.keys.rotate("another")
    wait = await suspended(engine, [PendingWaitpoint("mine")], lease=lease, timeout="1h")
    assert wait.token("mine") == own_token
    [waitpoint] = wait.answer.waitpoints
    assert waitpoint.expires_at == clock.now() + timedelta(hours=1)
    assert isinstance(await engine.signals.deliver(own_token, "go"), Accepted)
    assert isinstance(await engine.signals.deliver(foreign_token, "go"), Accepted)


async def test_only_the_live_owner_suspends_and_a_second_suspend_is_refused(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    cancelled, expired, completed = await leased(engine), await leased(engine), await leased(engine)
    await engine.operator.cancel(cancelled.execution_id)
    await engine.leases.complete(completed.fence)
    clock.advance("30s")
    wait = await suspended(engine, ["first"])
    async with nothing_written(store):
        await refused(engine.leases.suspend(cancelled.fence, ["go"]), "execution_not_active")
        await refused(engine.leases.suspend(completed.fence, ["go"]), "execution_not_active")
        await refused(engine.leases.suspend(expired.fence, ["go"]), "lease_expired")
        await refused(engine.leases.suspend(wait.lease.fence, ["second"]), "execution_not_active")
    assert isinstance(await engine.signals.deliver(wait.token("first"), "go"), Accepted)


async def test_wait_that_could_never_end_is_refused(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    lease = await leased(engine)
    async with nothing_written(store):
        cases: list[tuple[str, list[str], Condition]] = [
            ("timeout_only_without_deadline", [], TimeoutOnly()),
            ("waitpoint_not_bound", [], Single("unbound")),
            ("waitpoint_not_used", ["unused", "a"], Single("a")),
            ("waitpoint_not_bound", ["a"], AllOf([Single("a"), Single("b")])),
        ]
        for code, waitpoints, condition in cases:
            await refused(engine.leases.suspend(lease.fence, waitpoints, condition), code, InvalidRequest)
        past = clock.now() - timedelta(hours=1)
        await refused(engine.leases.suspend(lease.fence, ["a"], timeout_at=past), "timeout_at_in_past", InvalidRequest)
    # Without a waitpoint only an operator can end the wait, and `list_suspended` shows that.
    await suspended(engine, [], lease=lease)
    [view] = await engine.waitpoints.list_suspended()
    assert (view.condition, view.missing) == (OperatorOnly(), ("an operator to resume it",))


async def test_suspension_stores_all_its_options(engine: Engine, clock: VirtualClock) -> None:
    wait = await suspended(engine, reason="waiting_for_approval", resume_delay="1m", timeout="1h", on_timeout="cancel")
    execution = await engine.executions.describe(wait.id)
    assert execution.vector.blocking_reason.value == "waiting_for_approval"
    assert execution.changed_at == clock.now()
    assert execution.suspension is not None
    assert (execution.suspension.reason.value, execution.suspension.on_timeout) == (
        "waiting_for_approval",
        OnTimeout.CANCEL,
    )
    assert [waitpoint.id for waitpoint in execution.waitpoints] == [wait.waitpoint()]
    await engine.signals.deliver(wait.token(), "go")
    assert (await engine.executions.describe(wait.id)).ready_at == clock.now() + timedelta(minutes=1)
