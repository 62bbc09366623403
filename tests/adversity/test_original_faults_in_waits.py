"""Faults that another engine was proven to have in its waits and tokens, each as the fact that holds here."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from flowfabric.core.outcomes import Satisfied
from flowfabric.engine import (
    Accepted,
    AllOf,
    Condition,
    Conflict,
    Count,
    DuplicateSignal,
    Effect,
    Engine,
    InvalidRequest,
    Lease,
    NotFound,
    OnTimeout,
    OperatorOnly,
    Pending,
    Policy,
    Secret,
    Single,
    State,
    Suspended,
    TimeoutOnly,
)  # fmt: skip
from flowfabric.testing import VirtualClock
from tests.concurrency.soundness import assert_sound
from tests.facts import event_names, last_event, nothing_written, refused, stored_row
from tests.scenarios import leased, submitted, suspended
from tests.stores import TestStore


async def early(engine: Engine, lease: Lease, key: str = "go") -> Secret:
    """The token of a waitpoint that nobody waits on yet."""
    made = await engine.waitpoints.create(lease.fence, key)
    assert made.token is not None
    return made.token


@pytest.mark.parametrize("on_timeout", OnTimeout)
async def test_the_timeout_of_a_suspension_does_not_survive_its_resume(
    engine: Engine, clock: VirtualClock, store: TestStore, on_timeout: OnTimeout
) -> None:
    wait = await suspended(engine, timeout="1h", on_timeout=on_timeout)
    await engine.signals.deliver(wait.token(), "go")
    lease = await engine.leases.claim_resumed(wait.id, "worker-2", lease_ttl="3h")
    clock.advance("2h")
    async with nothing_written(store):
        await engine.reconcilers.tick()
    await engine.leases.complete(lease.fence, b"out")
    async with nothing_written(store):
        await engine.reconcilers.tick()
    assert sum(name.startswith("completion.") for name in await event_names(engine, wait.id)) == 1
    await assert_sound(store)


async def test_a_late_duplicate_is_a_duplicate_and_the_token_of_the_next_step_lives(engine: Engine) -> None:
    lease = await leased(engine)
    next_step = await early(engine, lease, "next")
    wait = await suspended(engine, lease=lease)
    first = await engine.signals.deliver(wait.token(), "go", key="webhook-1")
    assert await engine.signals.deliver(wait.token(), "go", key="webhook-1") == DuplicateSignal(first.signal_id)
    assert isinstance(await engine.signals.deliver(next_step, "early"), Accepted)


async def test_auto_resume_resumes_and_its_signal_can_be_read(engine: Engine, clock: VirtualClock) -> None:
    wait = await suspended(engine, timeout="1h", on_timeout="auto_resume")
    clock.advance("1h")
    await engine.reconcilers.tick()
    await engine.leases.claim_resumed(wait.id, "worker-2")
    assert [signal.name for signal in await engine.signals.observe(wait.id)] == ["timeout"]


async def test_fail_is_failed_and_escalate_stays_suspended(engine: Engine, clock: VirtualClock) -> None:
    waits = [await suspended(engine, timeout="1h", on_timeout=kind) for kind in ("fail", "escalate", "expire")]
    clock.advance("1h")
    await engine.reconcilers.tick()
    states = [(await engine.executions.describe(wait.id)).state.value for wait in waits]
    assert states == ["failed", "suspended", "expired"]
    assert (await engine.executions.describe(waits[0].id)).cancel_reason is None


async def test_a_timeout_ends_the_whole_of_the_execution(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    wait = await suspended(engine, timeout="1h")
    clock.advance("1h")
    await engine.reconcilers.tick()
    found = await engine.executions.describe(wait.id)
    assert (found.vector.public_state.value, found.waitpoints, found.suspension) == ("failed", (), None)
    assert [attempt.outcome.value for attempt in found.attempts] == ["ended_failure"]
    assert await engine.waitpoints.list_suspended() == []
    await assert_sound(store)


async def test_a_signal_resurrects_nothing_and_makes_no_running_execution_claimable(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    ended = await suspended(engine)
    await engine.operator.cancel(ended.id)
    async with nothing_written(store):
        await refused(engine.signals.deliver(ended.token(), "go"), "target_not_signalable")
    wait = await suspended(engine)
    await engine.signals.deliver(wait.token(), "go")
    running = await engine.leases.claim_resumed(wait.id, "worker-2")
    token = await early(engine, running)
    answer = await engine.signals.deliver(token, "go")
    assert isinstance(answer, Accepted)
    assert answer.effect is Effect.BUFFERED
    assert await engine.leases.claim(["default"], "worker-3") == []
    await engine.leases.renew(running.fence)
    await assert_sound(store)


async def test_a_signal_that_comes_before_the_wait_is_not_lost(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.signals.deliver(await early(engine, lease), "go")
    assert isinstance(await engine.leases.suspend(lease.fence, [Pending("go")]), Satisfied)


async def test_a_pending_waitpoint_is_used_as_it_is_or_not_at_all(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    lease, victim = await leased(engine), await leased(engine)
    theirs = await early(engine, victim, "theirs")
    mine = await early(engine, lease, "mine")
    await engine.waitpoints.create(lease.fence, "brief", expires="1s")
    clock.advance("1s")
    async with nothing_written(store):
        for key in ("missing", "theirs", "brief"):
            call = engine.leases.suspend(lease.fence, [Pending(key)])
            await refused(call, "waitpoint_not_found", NotFound)
    await engine.keys.rotate("another")
    wait = await suspended(engine, [Pending("mine")], lease=lease, timeout="1h")
    assert wait.token("mine") == mine
    [shown] = wait.answer.waitpoints
    assert shown.expires_at == clock.now() + timedelta(hours=1)
    assert isinstance(await engine.signals.deliver(mine, "go"), Accepted)
    assert isinstance(await engine.signals.deliver(theirs, "go"), Accepted)


async def test_only_the_live_owner_suspends_and_a_second_suspend_overwrites_nothing(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    cancelled, expired, done = await leased(engine), await leased(engine), await leased(engine)
    await engine.operator.cancel(cancelled.execution_id)
    await engine.leases.complete(done.fence)
    clock.advance("30s")
    wait = await suspended(engine, ["first"])
    async with nothing_written(store):
        await refused(engine.leases.suspend(cancelled.fence, ["go"]), "execution_not_active")
        await refused(engine.leases.suspend(done.fence, ["go"]), "execution_not_active")
        await refused(engine.leases.suspend(expired.fence, ["go"]), "lease_expired")
        await refused(engine.leases.suspend(wait.lease.fence, ["second"]), "execution_not_active")
    assert isinstance(await engine.signals.deliver(wait.token("first"), "go"), Accepted)


async def test_a_key_of_one_execution_tells_nothing_to_another(engine: Engine) -> None:
    tenant = engine.within("tenant-b")
    one, two = await suspended(engine, key="step-1"), await suspended(tenant, key="step-1")
    three = await suspended(engine, key="step-1")
    assert len({one.token(), two.token(), three.token()}) == 3
    assert len({one.suspension, two.suspension, three.suspension}) == 3


async def test_an_empty_key_is_no_key(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    async with nothing_written(store):
        await refused(engine.leases.suspend(lease.fence, ["go"], key=""), "invalid_name", InvalidRequest)


async def test_nothing_that_could_wait_for_ever_is_suspended(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
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
    # Without a waitpoint, only an operator can end the wait, and that is said.
    await suspended(engine, [], lease=lease)
    [view] = await engine.waitpoints.list_suspended()
    assert (view.condition, view.missing) == (OperatorOnly(), ("an operator's resume",))


async def test_a_suspension_keeps_everything_that_it_was_told(engine: Engine, clock: VirtualClock) -> None:
    wait = await suspended(engine, reason="waiting_for_approval", resume_delay="1m", timeout="1h", on_timeout="cancel")
    found = await engine.executions.describe(wait.id)
    assert found.vector.blocking_reason.value == "waiting_for_approval"
    assert found.changed_at == clock.now()
    assert found.suspension is not None
    assert (found.suspension.reason.value, found.suspension.on_timeout) == ("waiting_for_approval", OnTimeout.CANCEL)
    assert [item.id for item in found.waitpoints] == [wait.waitpoint()]
    await engine.signals.deliver(wait.token(), "go")
    assert (await engine.executions.describe(wait.id)).ready_at == clock.now() + timedelta(minutes=1)


async def test_a_signals_arguments_all_do_something(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    submit = {"policy": Policy(max_signals=2)}
    wait = await suspended(engine, ["go"], Count(2, "signals", ["go"]), submit=submit)
    first = await engine.signals.deliver(wait.token(), "a", b"\xff", encoding="raw", key="k", created_at=clock.now())
    async with nothing_written(store):
        assert await engine.signals.deliver(wait.token(), "a", key="k") == DuplicateSignal(first.signal_id)
    await engine.signals.deliver(wait.token(), "b", resume_delay="1m", source_identity="x")
    assert (await engine.executions.describe(wait.id)).state is State.DELAYED
    signals = await engine.signals.observe(wait.id)
    assert [(signal.encoding, signal.source_identity) for signal in signals] == [("raw", "unknown"), ("json", "x")]


async def test_an_approval_has_the_idempotency_that_it_promises(engine: Engine, store: TestStore) -> None:
    wait = await suspended(engine, ["go"], Count(2, "signals", ["go"]))
    first = await engine.signals.approve(wait.id, "go", suffix="1")
    async with nothing_written(store):
        assert await engine.signals.approve(wait.id, "go", suffix="1") == DuplicateSignal(first.signal_id)


async def test_what_is_resumed_can_be_claimed_by_every_claim(engine: Engine, store: TestStore) -> None:
    waits = [await suspended(engine) for _ in range(3)]
    for wait in waits:
        await engine.signals.deliver(wait.token(), "go")
    assert (await stored_row(store, waits[0].id))["ownership"] is None
    await engine.leases.claim_execution(waits[0].id, "worker-2")
    await engine.leases.claim_resumed(waits[1].id, "worker-2")
    [lease] = await engine.leases.claim(["default"], "worker-2")
    assert (lease.execution_id, lease.attempt_index) == (waits[2].id, 0)


async def test_a_resume_is_no_completion(engine: Engine) -> None:
    wait = await suspended(engine)
    await engine.signals.deliver(wait.token(), "go")
    event = await last_event(engine, wait.id)
    assert (event.family, event.name, event.namespace) == ("lifecycle", "resumed", "default")


async def test_what_an_operator_resumed_is_claimed_like_the_rest(engine: Engine) -> None:
    wait = await suspended(engine)
    await engine.operator.resume(wait.id)
    lease = await engine.leases.claim_resumed(wait.id, "worker-2")
    assert lease.attempt_index == 0


async def test_the_delay_of_an_operators_resume_passes_and_its_waitpoints_are_closed(
    engine: Engine, clock: VirtualClock
) -> None:
    wait = await suspended(engine)
    await engine.operator.resume(wait.id, delay="1m")
    await refused(engine.signals.deliver(wait.token(), "late"), "waitpoint_closed")
    clock.advance("1m")
    await engine.reconcilers.tick()
    await engine.leases.claim_resumed(wait.id, "worker-2")


async def test_what_was_observed_is_ordered_and_outlives_the_next_suspension(engine: Engine) -> None:
    first = await suspended(engine, ["zz", "a"])
    for key in ("zz", "a"):
        await engine.signals.deliver(first.token(key), "go")
    lease = await engine.leases.claim_resumed(first.id, "worker-2")
    await suspended(engine, ["b"], lease=lease)
    seen = await engine.signals.observe(first.id, suspension=first.suspension)
    assert [signal.waitpoint for signal in seen] == ["zz", "a"]


async def test_every_part_of_a_fence_is_real(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    async with nothing_written(store):
        for forged in (replace(lease.fence, lease_id=uuid4()), replace(lease.fence, epoch=lease.epoch + 1)):
            await refused(engine.leases.suspend(forged, ["go"]), "stale_lease")
    assert isinstance(await engine.leases.suspend(lease.fence, ["go"]), Suspended)


async def test_a_waitpoint_is_made_by_the_owner_of_an_active_execution_only(engine: Engine, store: TestStore) -> None:
    wait = await suspended(engine)
    async with nothing_written(store):
        await refused(engine.waitpoints.create(wait.lease.fence, "more"), "execution_not_active")
        huge = engine.waitpoints.create(wait.lease.fence, "more", expires=10**12)
        await refused(huge, "out_of_range", InvalidRequest)


async def test_closing_a_waitpoint_harms_no_other_and_is_no_race_with_the_timeout(
    engine: Engine, clock: VirtualClock
) -> None:
    wait = await suspended(engine, ["a", "b"], Count(1, "waitpoints", ["a", "b"]), timeout="1h", on_timeout="escalate")
    await engine.waitpoints.close(wait.waitpoint("a"))
    assert isinstance(await engine.signals.deliver(wait.token("b"), "go"), Accepted)
    assert (await engine.executions.describe(wait.id)).state is State.WAITING
    bound = await suspended(engine, timeout="1h", on_timeout="auto_resume")
    clock.advance("1h")
    ticks = {tick.duty: tick.done for tick in await engine.reconcilers.tick()}
    assert (ticks["suspension_timeout"], ticks["waitpoint_expiry"]) == (1, 0)
    assert (await engine.executions.describe(bound.id)).state is State.WAITING


async def test_keys_end_and_are_collected_and_no_kid_is_used_twice(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    await engine.keys.seed("k1", "11" * 32)
    wait = await suspended(engine)
    await engine.keys.rotate("k2", "22" * 32, grace="1h")
    clock.advance("1h")
    await refused(engine.signals.deliver(wait.token(), "go"), "invalid_token", InvalidRequest)
    assert {tick.duty: tick.done for tick in await engine.reconcilers.tick()}["key_collection"] == 1
    async with nothing_written(store):
        await refused(engine.keys.rotate("k1", "11" * 32), "rotation_conflict", Conflict)
        await refused(engine.keys.rotate("a:b", "11" * 32), "invalid_kid", InvalidRequest)
        await refused(engine.keys.rotate("k3", ""), "invalid_secret_hex", InvalidRequest)


async def test_whether_something_exists_is_not_told_without_a_genuine_token(engine: Engine) -> None:
    wait = await suspended(engine)
    body = wait.token().reveal().rsplit(".", 1)[0]
    existing, unknown = f"{body}.{'A' * 43}", f"ffw1.nokey.{'A' * 60}.{'A' * 43}"
    errors = [await refused(engine.signals.deliver(text, "go"), "invalid_token", InvalidRequest)
              for text in (existing, unknown, "nonsense")]  # fmt: skip
    assert len({(str(error), tuple(error.fields)) for error in errors}) == 1


async def test_only_what_is_suspended_is_listed_and_the_cursor_skips_nothing(engine: Engine) -> None:
    waits = [await suspended(engine) for _ in range(4)]
    [first] = await engine.waitpoints.list_suspended(limit=1)
    await engine.signals.deliver(waits[0].token(), "go")
    await engine.operator.cancel(waits[3].id)
    rest = await engine.waitpoints.list_suspended(after=first.execution_id)
    assert [view.execution_id for view in rest] == sorted(wait.id for wait in waits[1:3])
    await submitted(engine)
    assert len(await engine.waitpoints.list_suspended()) == 2
