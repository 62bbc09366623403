"""leases.hold: a worker stops for a person, with a report; no attempt is used."""

from __future__ import annotations

from flowfabric.engine import (
    Engine,
    Held,
    InvalidRequest,
    Policy,
    State,
    Step,
    Unheld,
)  # fmt: skip
from flowfabric.testing import VirtualClock
from tests.facts import event_names, every_write_is_refused, last_event, nothing_written, refused
from tests.scenarios import leased
from tests.stores import TestStore

REPORT = "refund: the code no longer matches\n  recorded  now\n> sleep     audit"


async def test_held_work_goes_on_with_the_same_attempt_when_it_is_unheld(engine: Engine) -> None:
    lease = await leased(engine)
    assert await engine.leases.hold(lease.fence, "diverged", REPORT, steps=[Step("seen", b"1")]) == Held("diverged")
    assert await engine.leases.claim(["default"], "worker-2") == []
    held = await engine.executions.describe(lease.execution_id)
    assert (held.state, held.hold_reason, held.vector.eligibility_state) == (
        State.BLOCKED, "diverged", "blocked_by_operator",
    )  # fmt: skip
    assert (held.epoch, held.lease, held.attempts) == (lease.epoch + 1, None, ())
    await every_write_is_refused(engine, lease.fence, "execution_not_active")
    assert await engine.operator.unhold(lease.execution_id) == Unheld(State.WAITING)
    [again] = await engine.leases.claim(["default"], "worker-2")
    assert (again.attempt_index, again.generation, again.origin) == (lease.attempt_index, lease.generation, "resumed")
    after = await engine.executions.describe(lease.execution_id)
    assert (after.retry_count, after.reclaim_count, after.hold_reason) == (0, 0, None)
    assert [step.name for step in await engine.executions.steps(lease.execution_id)] == ["seen"]


async def test_the_report_is_shown_wherever_somebody_looks(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.leases.hold(lease.fence, "diverged", REPORT)
    assert (await engine.executions.describe(lease.execution_id)).hold_report == REPORT
    told = await engine.operator.explain(lease.execution_id)
    assert told.facts["report"] == REPORT
    assert told.sentence == (
        "Its worker holds it (diverged): refund: the code no longer matches;"
        " repair that, then unhold it to let it go on."
    )
    event = await last_event(engine, lease.execution_id)
    assert (event.family, event.name, event.ends_lease, event.reason) == ("operator", "held", True, "diverged")
    assert event.details == {"report": REPORT}
    assert event.principal == "worker-1"
    await engine.operator.unhold(lease.execution_id)
    assert (await engine.executions.describe(lease.execution_id)).hold_report is None
    await engine.operator.hold(lease.execution_id, "wait")
    assert (await engine.executions.describe(lease.execution_id)).hold_report is None
    assert "An operator holds it (wait)" in (await engine.operator.explain(lease.execution_id)).sentence


async def test_all_that_were_held_for_a_reason_are_unheld_at_once(engine: Engine) -> None:
    diverged = [await leased(engine, kind="refund") for _ in range(2)]
    for lease in diverged:
        await engine.leases.hold(lease.fence, "diverged", REPORT)
    other = await leased(engine, kind="refund")
    await engine.leases.hold(other.fence, "input_mismatch", REPORT)
    assert await engine.operator.unhold_all(kind="refund", held_for="diverged") == 2
    assert (await engine.executions.describe(other.execution_id)).state is State.BLOCKED


async def test_a_lost_reply_is_answered_again_and_other_content_is_refused(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    await engine.leases.hold(lease.fence, "diverged", REPORT)
    async with nothing_written(store):
        assert await engine.leases.hold(lease.fence, "diverged", REPORT) == Held("diverged")
        await refused(engine.leases.hold(lease.fence, "diverged", "another"), "execution_not_active")
    await engine.operator.unhold(lease.execution_id)
    assert await engine.leases.hold(lease.fence, "diverged", REPORT) == Held("diverged")
    assert await event_names(engine, lease.execution_id) == ["lease.acquired", "operator.held", "operator.unheld"]


async def test_the_rest_of_the_attempts_time_is_kept(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=Policy(attempt_timeout="10s"))
    clock.advance("4s")
    await engine.leases.hold(lease.fence, "diverged", REPORT)
    clock.advance("1d")
    await engine.reconcilers.tick()
    await engine.operator.unhold(lease.execution_id)
    again = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    assert again.attempt_timeout_at is not None
    assert (again.attempt_timeout_at - clock.now()).total_seconds() == 6


async def test_what_is_held_can_be_cancelled_and_runs_out_of_time(engine: Engine, clock: VirtualClock) -> None:
    cancelled, expired = await leased(engine), await leased(engine, policy=Policy(deadline="1m"))
    for lease in (cancelled, expired):
        await engine.leases.hold(lease.fence, "diverged", REPORT)
    await engine.operator.cancel(cancelled.execution_id)
    clock.advance("2m")
    await engine.reconcilers.tick()
    states = [(await engine.executions.describe(item.execution_id)).state for item in (cancelled, expired)]
    assert states == [State.CANCELLED, State.EXPIRED]


async def test_signals_are_kept_while_it_is_held(engine: Engine) -> None:
    lease = await leased(engine, signals=["go"])
    await engine.leases.hold(lease.fence, "diverged", REPORT)
    await engine.signals.send(lease.execution_id, "go")
    assert [signal.name for signal in (await engine.leases.look(lease.fence, {"go": 0})).signals] == ["go"]


async def test_a_report_has_a_limit_that_fits_a_long_table(engine: Engine) -> None:
    lease = await leased(engine)
    await refused(engine.leases.hold(lease.fence, "r", "x" * (64 * 1024 + 1)), "payload_too_large", InvalidRequest)
    await engine.leases.hold(lease.fence, "r", "x" * 64 * 1024)
