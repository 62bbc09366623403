"""Tests of leases.hold, by which a worker stops with a report for a person and uses no attempt."""

from __future__ import annotations

from flowfabric.engine import (
    Engine,
    Held,
    InvalidRequest,
    Policy,
    State,
    Step,
    Unheld,
)
from flowfabric.testing import VirtualClock
from tests.expectations import event_names, every_write_is_refused, last_event, nothing_written, refused
from tests.scenarios import leased
from tests.stores import TestStore

REPORT = "refund: the code no longer matches\n  recorded  now\n> sleep     audit"


async def test_unheld_work_continues_with_the_same_attempt(engine: Engine) -> None:
    lease = await leased(engine)
    assert await engine.leases.hold(lease.fence, "diverged", REPORT, steps=[Step("seen", b"1")]) == Held("diverged")
    assert await engine.leases.claim(["default"], "worker-2") == []
    held = await engine.executions.describe(lease.execution_id)
    assert (held.state, held.hold_reason, held.vector.eligibility_state) == (
        State.BLOCKED,
        "diverged",
        "blocked_by_operator",
    )
    assert (held.epoch, held.lease, held.attempts) == (lease.epoch + 1, None, ())
    await every_write_is_refused(engine, lease.fence, "execution_not_active")
    assert await engine.operator.unhold(lease.execution_id) == Unheld(State.WAITING)
    [next_lease] = await engine.leases.claim(["default"], "worker-2")
    assert (next_lease.attempt_index, next_lease.generation, next_lease.origin) == (
        lease.attempt_index,
        lease.generation,
        "resumed",
    )
    after = await engine.executions.describe(lease.execution_id)
    assert (after.retry_count, after.reclaim_count, after.hold_reason) == (0, 0, None)
    assert [step.name for step in await engine.executions.steps(lease.execution_id)] == ["seen"]


async def test_report_is_in_the_description_the_explanation_and_the_event(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.leases.hold(lease.fence, "diverged", REPORT)
    assert (await engine.executions.describe(lease.execution_id)).hold_report == REPORT
    explanation = await engine.operator.explain(lease.execution_id)
    assert explanation.facts["report"] == REPORT
    assert explanation.sentence == (
        'Held by its worker ("diverged"): refund: the code no longer matches. Fix the cause, then unhold it.'
    )
    event = await last_event(engine, lease.execution_id)
    assert (event.family, event.name, event.ends_lease, event.reason) == ("operator", "held", True, "diverged")
    assert event.details == {"report": REPORT}
    assert event.principal == "worker-1"
    await engine.operator.unhold(lease.execution_id)
    assert (await engine.executions.describe(lease.execution_id)).hold_report is None
    await engine.operator.hold(lease.execution_id, "wait")
    assert (await engine.executions.describe(lease.execution_id)).hold_report is None
    assert 'Held by an operator ("wait")' in (await engine.operator.explain(lease.execution_id)).sentence


async def test_unhold_all_releases_every_execution_held_for_a_reason(engine: Engine) -> None:
    diverged = [await leased(engine, kind="refund") for _ in range(2)]
    for lease in diverged:
        await engine.leases.hold(lease.fence, "diverged", REPORT)
    other_lease = await leased(engine, kind="refund")
    await engine.leases.hold(other_lease.fence, "input_mismatch", REPORT)
    assert await engine.operator.unhold_all(kind="refund", hold_reason="diverged") == 2
    assert (await engine.executions.describe(other_lease.execution_id)).state is State.BLOCKED


async def test_repeated_hold_returns_the_first_outcome_and_other_content_is_refused(
    engine: Engine, store: TestStore
) -> None:
    lease = await leased(engine)
    await engine.leases.hold(lease.fence, "diverged", REPORT)
    async with nothing_written(store):
        assert await engine.leases.hold(lease.fence, "diverged", REPORT) == Held("diverged")
        await refused(engine.leases.hold(lease.fence, "diverged", "another"), "execution_not_active")
    await engine.operator.unhold(lease.execution_id)
    assert await engine.leases.hold(lease.fence, "diverged", REPORT) == Held("diverged")
    assert await event_names(engine, lease.execution_id) == ["lease.acquired", "operator.held", "operator.unheld"]


async def test_hold_keeps_the_remaining_attempt_timeout(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=Policy(attempt_timeout="10s"))
    clock.advance("4s")
    await engine.leases.hold(lease.fence, "diverged", REPORT)
    clock.advance("1d")
    await engine.reconcilers.tick()
    await engine.operator.unhold(lease.execution_id)
    next_lease = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    assert next_lease.attempt_timeout_at is not None
    assert (next_lease.attempt_timeout_at - clock.now()).total_seconds() == 6


async def test_held_execution_can_be_cancelled_and_can_expire(engine: Engine, clock: VirtualClock) -> None:
    cancelled, expired = await leased(engine), await leased(engine, policy=Policy(deadline="1m"))
    for lease in (cancelled, expired):
        await engine.leases.hold(lease.fence, "diverged", REPORT)
    await engine.operator.cancel(cancelled.execution_id)
    clock.advance("2m")
    await engine.reconcilers.tick()
    states = [(await engine.executions.describe(lease.execution_id)).state for lease in (cancelled, expired)]
    assert states == [State.CANCELLED, State.EXPIRED]


async def test_signals_are_kept_while_the_execution_is_held(engine: Engine) -> None:
    lease = await leased(engine, signals=["go"])
    await engine.leases.hold(lease.fence, "diverged", REPORT)
    await engine.signals.send(lease.execution_id, "go")
    assert [signal.name for signal in (await engine.leases.read_waits(lease.fence, {"go": 0})).signals] == ["go"]


async def test_report_has_a_size_limit(engine: Engine) -> None:
    lease = await leased(engine)
    await refused(engine.leases.hold(lease.fence, "r", "x" * (64 * 1024 + 1)), "payload_too_large", InvalidRequest)
    await engine.leases.hold(lease.fence, "r", "x" * 64 * 1024)
