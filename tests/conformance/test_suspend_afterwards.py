"""What earlier waits of an execution leave behind must not bend the later ones, nor later ones the earlier answers."""

from __future__ import annotations

from datetime import timedelta

import pytest

from flowfabric.core.outcomes import Satisfied
from flowfabric.engine import AnyOf, BlockingReason, Conflict, Engine, Rest, Single, Timer
from flowfabric.testing import VirtualClock
from tests.facts import nothing_written, refused
from tests.scenarios import leased, suspended
from tests.stores import TestStore

EITHER = AnyOf([Single("go"), Single("late")])
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize("has_fired", [False, True])
async def test_a_timer_that_was_kept_does_not_stand_for_a_later_one(
    engine: Engine, clock: VirtualClock, store: TestStore, has_fired: bool
) -> None:
    at = clock.now() + 5 * SECOND
    wait = await suspended(engine, ["go", Timer("late", at)], EITHER, rest=Rest.KEEP)
    await engine.signals.deliver(wait.token(), "now")
    lease = await engine.leases.claim_resumed(wait.id, "worker-2")
    clock.advance((5 if has_fired else 1) * SECOND)
    await engine.reconcilers.tick()
    later = engine.leases.suspend(lease.fence, ["go", Timer("late", at + SECOND)], EITHER)
    async with nothing_written(store):
        await refused(later, "waitpoint_already_exists", Conflict)
    answer = await engine.leases.suspend(lease.fence, ["go", Timer("late", at)], EITHER)
    assert isinstance(answer, Satisfied) == has_fired, "the very same timer may be waited for again"


async def test_a_repeat_is_known_although_a_later_owner_found_its_own_wait_satisfied(
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


async def test_a_resume_that_was_held_still_waits_for_its_delay(engine: Engine) -> None:
    lease = await leased(engine)
    wait = await suspended(engine, lease=lease, resume_delay="1m")
    await engine.signals.deliver(wait.token(), "now")
    before = (await engine.executions.describe(wait.id)).vector
    await engine.operator.hold(wait.id)
    await engine.operator.unhold(wait.id)
    assert (await engine.executions.describe(wait.id)).vector == before
    assert before.blocking_reason is BlockingReason.WAITING_FOR_RESUME_DELAY
