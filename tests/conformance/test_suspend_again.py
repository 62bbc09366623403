"""Tests that earlier waits of an execution do not affect later ones.

If a caller repeats an earlier suspend, later waits do not affect its outcome either.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from flowfabric.core.executions.outcomes import Satisfied
from flowfabric.engine import AnyOf, BlockingReason, Conflict, Engine, Single, Timer, UnusedWaitpoints
from flowfabric.testing import VirtualClock
from tests.expectations import nothing_written, refused
from tests.scenarios import leased, suspended
from tests.stores import TestStore

EITHER = AnyOf([Single("go"), Single("late")])
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize("has_fired", [False, True])
async def test_kept_timer_does_not_replace_a_later_one_with_another_time(
    engine: Engine, clock: VirtualClock, store: TestStore, has_fired: bool
) -> None:
    at = clock.now() + 5 * SECOND
    wait = await suspended(engine, ["go", Timer("late", at)], EITHER, unused_waitpoints=UnusedWaitpoints.KEEP)
    await engine.signals.deliver(wait.token(), "now")
    lease = await engine.leases.claim_resumed(wait.id, "worker-2")
    clock.advance((5 if has_fired else 1) * SECOND)
    await engine.reconcilers.tick()
    later = engine.leases.suspend(lease.fence, ["go", Timer("late", at + SECOND)], EITHER)
    async with nothing_written(store):
        await refused(later, "waitpoint_already_exists", Conflict)
    outcome = await engine.leases.suspend(lease.fence, ["go", Timer("late", at)], EITHER)
    assert isinstance(outcome, Satisfied) == has_fired, "the same timer may be waited for again"


async def test_repeated_suspend_is_recognized_after_a_later_wait_was_satisfied(
    engine: Engine, store: TestStore
) -> None:
    wait = await suspended(engine)
    await engine.operator.resume(wait.id)
    lease = await engine.leases.claim_resumed(wait.id, "worker-2")
    early = await engine.waitpoints.create(lease.fence, "early")
    await engine.signals.deliver(early.token or "", "now")
    assert isinstance(await engine.leases.suspend(lease.fence, ["early"]), Satisfied)
    async with nothing_written(store):
        assert await engine.leases.suspend(wait.lease.fence, ["go"]) == wait.answer


async def test_hold_keeps_the_resume_delay(engine: Engine) -> None:
    lease = await leased(engine)
    wait = await suspended(engine, lease=lease, resume_delay="1m")
    await engine.signals.deliver(wait.token(), "now")
    before = (await engine.executions.describe(wait.id)).vector
    await engine.operator.hold(wait.id)
    await engine.operator.unhold(wait.id)
    assert (await engine.executions.describe(wait.id)).vector == before
    assert before.blocking_reason is BlockingReason.WAITING_FOR_RESUME_DELAY
