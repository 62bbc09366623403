"""suspend: the lease is given up until signals satisfy a condition, or kept if they do already."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from flowfabric.core.outcomes import Satisfied
from flowfabric.core.waits import BLOCKING
from flowfabric.engine import (
    AllOf,
    AnyOf,
    BlockingReason,
    Conflict,
    Count,
    Counted,
    Engine,
    Fresh,
    InvalidRequest,
    Lease,
    NotFound,
    OperatorOnly,
    Pending,
    PublicState,
    Single,
    Standing,
    State,
    Step,
    Suspended,
    SuspensionReason,
    TimeoutOnly,
    Timer,
    WaitpointState,
)  # fmt: skip
from flowfabric.testing import VirtualClock
from tests.facts import every_write_is_refused, last_event, nothing_written, refused
from tests.scenarios import leased, suspended
from tests.stores import TestStore


async def go_on(engine: Engine, lease: Lease) -> Lease:
    """The lease of whoever takes the resumed execution up."""
    return await engine.leases.claim_resumed(lease.execution_id, "worker-2")


async def test_a_suspended_execution_holds_no_lease_and_shows_what_it_waits_for(
    engine: Engine, clock: VirtualClock
) -> None:
    lease = await leased(engine, tags={"a.b": "c"})
    clock.advance("1s")
    wait = await suspended(engine, ["manager"], Single("manager", "approved"), lease=lease, timeout="1h")
    found = await engine.executions.describe(wait.id)
    assert (found.state, found.lease, found.epoch, found.version) == (State.SUSPENDED, None, lease.epoch + 1, 2)
    assert found.vector.public_state is PublicState.SUSPENDED
    assert found.vector.lifecycle_phase.value == "suspended"
    assert found.vector.attempt_state.value == "attempt_interrupted"
    assert found.vector.blocking_reason is BlockingReason.WAITING_FOR_SIGNAL
    assert (found.attempt_index, found.attempts, found.changed_at) == (0, (), clock.now())
    assert found.suspension is not None
    assert (found.suspension.id, found.suspension.condition) == (wait.suspension, Single("manager", "approved"))
    assert found.suspension.missing == ("a signal named 'approved' on 'manager'",)
    assert found.suspension.timeout_at == clock.now() + timedelta(hours=1)
    [shown] = found.waitpoints
    assert (shown.id, shown.key, shown.state, shown.names) == (
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


async def test_the_fence_that_gave_the_lease_up_writes_nothing_more(engine: Engine, clock: VirtualClock) -> None:
    wait = await suspended(engine)
    await every_write_is_refused(engine, wait.lease.fence, "execution_not_active")
    await engine.signals.deliver(wait.token(), "go")
    await every_write_is_refused(engine, wait.lease.fence, "execution_not_active")
    later = await go_on(engine, wait.lease)
    assert later.epoch == wait.lease.epoch + 2
    assert later.fence.lease_id != wait.lease.fence.lease_id
    await every_write_is_refused(engine, wait.lease.fence, "execution_not_active")


async def test_a_suspended_execution_is_not_claimed_nor_held_by_anybody(engine: Engine) -> None:
    wait = await suspended(engine)
    assert await engine.leases.claim(["default"], "worker-2", limit=10) == []
    assert await engine.leases.held("worker-1") == []
    await refused(engine.leases.claim_execution(wait.id, "worker-2"), "execution_not_leaseable")
    await refused(engine.leases.claim_resumed(wait.id, "worker-2"), "execution_not_leaseable")


@pytest.mark.parametrize("reason", SuspensionReason)
async def test_every_reason_blocks_by_its_own_word(engine: Engine, reason: SuspensionReason) -> None:
    wait = await suspended(engine, reason=reason.value)
    found = await engine.executions.describe(wait.id)
    assert found.vector.blocking_reason is BLOCKING[reason]
    assert found.suspension is not None
    assert found.suspension.reason is reason


async def test_steps_ride_along_with_the_suspension(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    await engine.leases.checkpoint(lease.fence, [Step("one", b"1")])
    wait = await suspended(engine, lease=lease, key="wait-1", steps=[Step("two", b"2"), Step("wait-1", b"k")])
    assert [step.name for step in await engine.executions.steps(wait.id)] == ["one", "two", "wait-1"]
    other = await leased(engine)
    await engine.leases.checkpoint(other.fence, [Step("one", b"1")])
    async with nothing_written(store):
        clash = engine.leases.suspend(other.fence, ["go"], steps=[Step("new"), Step("one", b"another")])
        await refused(clash, "step_already_recorded", Conflict)
    await engine.leases.checkpoint(other.fence, [Step("two", b"2")])


async def test_steps_ride_along_when_the_wait_is_over_at_once(engine: Engine) -> None:
    lease = await leased(engine)
    early = await engine.waitpoints.create(lease.fence, "go")
    await engine.signals.deliver(early.token or "", "go")
    answer = await engine.leases.suspend(lease.fence, [Pending("go")], steps=[Step("wait")])
    assert isinstance(answer, Satisfied)
    assert [step.name for step in await engine.executions.steps(lease.execution_id)] == ["wait"]
    await engine.leases.checkpoint(lease.fence, [Step("next")])
    assert [step.seq for step in await engine.executions.steps(lease.execution_id)] == [1, 2]


async def test_of_many_that_suspend_together_each_gets_its_own_answer(engine: Engine, store: TestStore) -> None:
    leases = [await leased(engine) for _ in range(8)]
    stale = await leased(engine)
    await engine.operator.revoke_lease(stale.execution_id)
    clash = await leased(engine)
    await engine.leases.checkpoint(clash.fence, [Step("one", b"1")])
    calls = [engine.leases.suspend(lease.fence, ["go"], key="k") for lease in leases]
    calls.append(engine.leases.suspend(stale.fence, ["go"]))
    calls.append(engine.leases.suspend(clash.fence, ["go"], steps=[Step("one", b"other")]))
    *answers, revoked, clashed = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(answer, Suspended) for answer in answers)
    assert getattr(revoked, "code", None) == "lease_revoked"
    assert getattr(clashed, "code", None) == "step_already_recorded"
    tokens = {answer.token("go") for answer in answers if isinstance(answer, Suspended)}
    assert len(tokens) == len(leases), "no two executions share a token"
    assert (await engine.executions.describe(clash.execution_id)).state is State.ACTIVE


async def test_of_many_that_record_steps_with_their_waits_only_the_one_that_contradicts_is_refused(
    engine: Engine,
) -> None:
    leases = [await leased(engine, signals=["go"]) for _ in range(6)]
    early, clash = leases[:3], leases[-1]
    for place, lease in enumerate(early):
        await engine.signals.send(lease.execution_id, "go", b"%d" % place)
    await engine.leases.checkpoint(clash.fence, [Step("wait", b"before")])
    *answers, refusal = await asyncio.gather(
        *(
            engine.leases.suspend(lease.fence, [Standing("go")], steps=[Step("wait", b"%d" % place)])
            for place, lease in enumerate(leases)
        ),
        return_exceptions=True,
    )
    assert getattr(refusal, "code", None) == "step_already_recorded"
    for place, (lease, answer) in enumerate(zip(leases, answers, strict=False)):
        [step] = await engine.executions.steps(lease.execution_id)
        assert (step.name, step.payload, step.seq) == ("wait", b"%d" % place, 1)
        if lease in early:
            assert isinstance(answer, Satisfied)
            assert [signal.payload for signal in answer.signals] == [b"%d" % place]
        else:
            assert isinstance(answer, Suspended)
    assert (await engine.executions.describe(clash.execution_id)).state is State.ACTIVE


async def test_a_condition_and_its_bindings_must_fit(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    lease = await leased(engine)
    deep: Any = Single("a")
    for _ in range(4):
        deep = AllOf([deep])
    cases: list[tuple[str, list[Any], Any, dict[str, Any]]] = [
        ("waitpoint_not_bound", ["a"], AllOf([Single("a"), Single("b")]), {}),
        ("waitpoint_not_used", ["a", "b"], Single("a"), {}),
        ("timeout_only_without_deadline", [], TimeoutOnly(), {}),
        ("timeout_only_without_deadline", ["a"], AnyOf([Single("a"), TimeoutOnly()]), {}),
        ("invalid_request", ["a", Fresh("a")], Single("a"), {}),
        ("invalid_request", ["a"], None, {"timeout": 1, "timeout_at": clock.now()}),
        ("timeout_at_in_past", ["a"], None, {"timeout_at": clock.now() - timedelta(minutes=11)}),
        ("count_exceeds_sources", [Fresh("a", "ada")], Count(2, "sources", ["a"]), {}),
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
    answer = await engine.signals.deliver(wait.token(keys[-1]), "go")
    assert getattr(answer, "counted", None) is Counted.YES
    assert (await engine.executions.describe(wait.id)).state is State.WAITING


async def test_a_pending_or_standing_waitpoint_must_be_open_and_of_this_execution(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    other = await leased(engine)
    await engine.waitpoints.create(other.fence, "foreign")
    lease = await leased(engine)
    closed = await engine.waitpoints.create(lease.fence, "closed")
    await engine.waitpoints.close(closed.id)
    await engine.waitpoints.create(lease.fence, "expired", expires="1s")
    clock.advance("1s")
    async with nothing_written(store):
        for key in ("missing", "foreign", "closed", "expired"):
            call = engine.leases.suspend(lease.fence, [Pending(key)])
            await refused(call, "waitpoint_not_found", NotFound)
        await refused(engine.leases.suspend(lease.fence, [Standing("mail")]), "waitpoint_not_found", NotFound)


async def test_an_open_key_of_another_kind_is_not_taken_over(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine, signals=["mail"])
    await engine.waitpoints.create(lease.fence, "ada", approver="ada")
    soon = lease.expires_at
    async with nothing_written(store):
        for binding in (Fresh("mail"), Pending("mail"), Timer("mail", soon), Standing("ada"), Timer("ada", soon)):
            await refused(engine.leases.suspend(lease.fence, [binding]), "waitpoint_already_exists", Conflict)
        impostor = engine.leases.suspend(lease.fence, [Fresh("ada", approver="bob")])
        await refused(impostor, "waitpoint_already_exists", Conflict)


async def test_a_fresh_binding_of_an_open_key_is_the_waitpoint_that_is_there(engine: Engine) -> None:
    lease = await leased(engine)
    early = await engine.waitpoints.create(lease.fence, "go", expires="1h")
    wait = await suspended(engine, ["go"], lease=lease)
    assert (wait.waitpoint(), wait.token()) == (early.id, early.token)


async def test_the_expiry_of_a_pending_waitpoint_moves_to_the_timeout_or_to_never(
    engine: Engine, clock: VirtualClock
) -> None:
    for timeout, expected in (("2h", clock.now() + timedelta(hours=2)), (None, None)):
        lease = await leased(engine)
        await engine.waitpoints.create(lease.fence, "go", expires="1m")
        wait = await suspended(engine, [Pending("go")], lease=lease, timeout=timeout)
        [shown] = wait.answer.waitpoints
        assert shown.expires_at == expected
        [listed] = await engine.waitpoints.list(wait.id)
        assert listed.expires_at == expected
        clock.advance("1m")
        await engine.reconcilers.tick()
        await engine.signals.deliver(wait.token(), "go")
        assert (await engine.executions.describe(wait.id)).state is State.WAITING


async def test_a_timeout_only_wait_needs_no_waitpoint_and_makes_no_key(engine: Engine) -> None:
    wait = await suspended(engine, [], TimeoutOnly(), timeout="1h")
    assert wait.answer.waitpoints == ()
    await suspended(engine, [])
    assert await engine.keys.list() == ()
