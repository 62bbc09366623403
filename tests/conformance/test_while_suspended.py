"""Tests of suspended executions: timeouts, cancel, replay, claims after the resume, and purging."""

from __future__ import annotations

from datetime import timedelta

from flowfabric.engine import (
    Engine,
    Lease,
    NotFound,
    OnTimeout,
    PendingWaitpoint,
    Policy,
    StandingWaitpoint,
    State,
    Suspended,
    Timer,
    WaitpointState,
)
from flowfabric.testing import VirtualClock
from tests.expectations import event_names, nothing_written, refused
from tests.scenarios import leased, submitted, suspended
from tests.stores import TestStore


async def claim_resumed(engine: Engine, lease: Lease) -> Lease:
    """Claim the resumed execution."""
    return await engine.leases.claim_resumed(lease.execution_id, "worker-2")


async def test_attempt_timeout_is_paused_while_suspended(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, lease_ttl="1m", policy=Policy(attempt_timeout="1m"))
    clock.advance("20s")
    wait = await suspended(engine, lease=lease)
    clock.advance("1d")
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(wait.id)).state is State.SUSPENDED
    await engine.signals.deliver(wait.token(), "go")
    later = await claim_resumed(engine, lease)
    assert later.attempt_timeout_at == clock.now() + timedelta(seconds=40)


async def test_deadline_ends_a_suspended_execution_and_closes_everything(engine: Engine, clock: VirtualClock) -> None:
    submit = {"policy": Policy(deadline="1h"), "signals": ["mail"]}
    wait = await suspended(engine, ["go", Timer("late", clock.now() + timedelta(hours=2))], submit=submit, timeout="3h")
    clock.advance("1h")
    await engine.reconcilers.tick()
    execution = await engine.executions.describe(wait.id)
    assert (execution.state, execution.suspension, execution.waitpoints) == (State.EXPIRED, None, ())
    assert {waitpoint.close_reason for waitpoint in await engine.waitpoints.list(wait.id)} == {"ended"}
    assert await engine.waitpoints.list_suspended() == []
    clock.advance("3h")
    ticks = await engine.reconcilers.tick()
    assert sum(tick.done for tick in ticks) == 0
    assert (await event_names(engine, wait.id))[-1] == "completion.expired"


async def test_cancel_while_suspended_closes_everything_permanently(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    wait = await suspended(engine, submit={"signals": ["mail"]}, timeout="1h", on_timeout="auto_resume")
    await engine.operator.cancel(wait.id, "not wanted")
    [attempt] = (await engine.executions.describe(wait.id)).attempts
    assert attempt.outcome.value == "ended_cancelled"
    clock.advance("2m")
    async with nothing_written(store):
        await refused(engine.signals.deliver(wait.token(), "go"), "target_not_signalable")
        await refused(engine.signals.send(wait.id, "mail"), "target_not_signalable")
        await refused(engine.operator.resume(wait.id), "execution_not_suspended")
    clock.advance("2h")
    async with nothing_written(store):
        await engine.reconcilers.tick()
    assert (await engine.executions.describe(wait.id)).state is State.CANCELLED


async def test_replay_reopens_only_the_standing_waitpoints(engine: Engine) -> None:
    wait = await suspended(engine, ["go", "more"], submit={"signals": ["mail", "stop"]})
    await engine.signals.send(wait.id, "mail", b"old")
    await engine.operator.cancel(wait.id)
    await engine.operator.replay(wait.id)
    execution = await engine.executions.describe(wait.id)
    assert execution.suspension is None
    assert [(waitpoint.key, waitpoint.state) for waitpoint in execution.waitpoints] == [
        ("mail", WaitpointState.PENDING),
        ("stop", WaitpointState.PENDING),
    ]
    await refused(engine.signals.deliver(wait.token(), "late"), "waitpoint_closed")
    lease = await engine.leases.claim_execution(wait.id, "w")
    assert (lease.origin, lease.resumption) == ("replayed", None)
    outcome = await engine.leases.suspend(lease.fence, [StandingWaitpoint("mail")])
    assert isinstance(outcome, Suspended), "signals of the previous generation do not count"


async def test_replay_after_a_resume_has_no_resumption(engine: Engine) -> None:
    wait = await suspended(engine)
    await engine.signals.deliver(wait.token(), "go")
    await engine.operator.cancel(wait.id)
    await engine.operator.replay(wait.id)
    lease = await engine.leases.claim_execution(wait.id, "w")
    assert (lease.origin, lease.resumption) == ("replayed", None)


async def test_resumed_work_is_claimed_before_new_work_and_the_lease_has_the_trigger(
    engine: Engine, clock: VirtualClock
) -> None:
    wait = await suspended(engine)
    older = await submitted(engine)
    clock.advance("1s")
    await engine.signals.deliver(wait.token(), "go")
    leases = await engine.leases.claim(["default"], "worker-2", limit=2)
    assert [lease.execution_id for lease in leases] == [wait.id, older]
    assert (leases[0].origin, leases[0].attempt_index) == ("resumed", 0)
    assert leases[0].resumption is not None
    assert (leases[0].resumption.suspension_id, leases[0].resumption.trigger) == (wait.suspension, "signals")
    assert leases[1].resumption is None
    [held, *_] = await engine.leases.held("worker-2")
    assert held.resumption == leases[0].resumption
    await engine.leases.release(leases[0].fence)
    next_lease = await engine.leases.claim_execution(wait.id, "worker-3")
    assert (next_lease.origin, next_lease.resumption) == ("resumed", None)


async def test_execution_has_at_most_a_thousand_open_waitpoints(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine, lease_ttl="1h", signals=[f"s{number}" for number in range(64)])
    await engine.waitpoints.create_many(lease.fence, [f"p{number}" for number in range(935)])
    await engine.waitpoints.create(lease.fence, "the thousandth")
    async with nothing_written(store):
        await refused(engine.waitpoints.create(lease.fence, "more"), "too_many_open_waitpoints")
        await refused(engine.leases.suspend(lease.fence, ["more"]), "too_many_open_waitpoints")
        await engine.waitpoints.create(lease.fence, "p0")
    await suspended(engine, [PendingWaitpoint("p0")], lease=lease)


async def test_purged_execution_leaves_no_wait_rows(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    wait = await suspended(engine, submit={"signals": ["mail"]})
    await engine.signals.send(wait.id, "mail")
    await engine.signals.deliver(wait.token(), "go")
    await engine.operator.cancel(wait.id)
    clock.advance("31d")
    await engine.reconcilers.tick()
    for table in ("suspension", "waitpoint", "signal"):
        assert await store.query(f"SELECT * FROM ff.{table}") == [], table
    await refused(engine.signals.deliver(wait.token(), "go"), "execution_not_found", NotFound)


async def test_events_of_a_wait_are_complete_and_ordered(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    early = await engine.waitpoints.create(lease.fence, "early")
    await engine.signals.deliver(early.token or "", "first")
    wait = await suspended(engine, ["go", PendingWaitpoint("early")], lease=lease, resume_delay="1m")
    await engine.signals.deliver(wait.token("early"), "again")
    await engine.signals.deliver(wait.token(), "go")
    clock.advance("1m")
    await engine.reconcilers.tick()
    await engine.leases.complete((await claim_resumed(engine, lease)).fence)
    history = await engine.executions.history(wait.id)
    assert [f"{event.family}.{event.name}" for event in history] == [
        "lease.acquired",
        "signal.buffered",
        "lease.suspended",
        "signal.delivered",
        "signal.delivered",
        "lifecycle.resumed",
        "lifecycle.ready",
        "lease.acquired",
        "completion.completed",
    ]
    assert [event.version for event in history] == list(range(1, 10))
    assert (await engine.executions.describe(wait.id)).version == 9
    assert [event.ends_lease for event in history].count(True) == 2


def test_timeout_behaviours_are_the_five_of_the_contract() -> None:
    assert {behaviour.value for behaviour in OnTimeout} == {"fail", "cancel", "expire", "auto_resume", "escalate"}
