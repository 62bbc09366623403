"""Tests of the deadline, which expires an execution in every live state and is never moved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from flowfabric.engine import AttemptOutcome, Engine, InvalidRequest, OnLeaseLoss, Policy, State
from flowfabric.testing import VirtualClock
from tests import scenarios
from tests.expectations import LIVE, error_of, event_names, every_write_is_refused, last_event
from tests.scenarios import SITUATIONS, STEADY, leased, submitted

MICROSECOND = timedelta(microseconds=1)
# Longer deadlines for the situations that cannot be arranged within the default deadline of this test.
LONGER_DEADLINES = {"active: lease run out": "40s", "active: kept, lease expired": "40s"}


async def test_deadline_expires_the_execution_in_every_live_situation(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for situation in LIVE:
        deadline = LONGER_DEADLINES.get(situation, "5s")
        monkeypatch.setattr(scenarios, "submitted", make_submit(deadline))
        id_ = await SITUATIONS[situation](engine, clock)
        monkeypatch.undo()
        before = await engine.executions.describe(id_)
        assert before.deadline_at is not None, situation
        clock.advance(before.deadline_at - clock.now())
        await engine.reconcilers.tick()
        after, names = await engine.executions.describe(id_), await event_names(engine, id_)
        assert (after.state, after.ended_at) == (State.EXPIRED, before.deadline_at), situation
        assert after.epoch > before.epoch, situation
        assert (after.lease, after.ready_at, after.hold_reason) == (None, None, None), situation
        assert after.last_failure is not None, situation
        assert after.last_failure.category == "deadline", situation
        assert (names[-1], names.count("completion.expired")) == ("completion.expired", 1), situation


async def test_execution_does_not_expire_early_or_after_it_ended(engine: Engine, clock: VirtualClock) -> None:
    id_, lease = (
        await submitted(engine, policy=Policy(deadline="1h")),
        await leased(engine, policy=Policy(deadline="1h")),
    )
    await engine.leases.complete(lease.fence, b"out")
    clock.advance(timedelta(hours=1) - MICROSECOND)
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(id_)).version == 0
    clock.advance(MICROSECOND)
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(id_)).state is State.EXPIRED
    assert (await engine.executions.describe(lease.execution_id)).state is State.COMPLETED


async def test_deadline_can_be_relative_or_absolute(engine: Engine, clock: VirtualClock) -> None:
    at = clock.now() + timedelta(minutes=1)
    relative = await submitted(engine, policy=Policy(deadline="1m"))
    absolute = await submitted(engine, deadline=at)
    both = await submitted(engine, deadline=at, policy=Policy(deadline="1h"))
    for id_ in (relative, absolute, both):
        assert (await engine.executions.describe(id_)).deadline_at == at
    clock.advance("1m")
    await engine.reconcilers.tick()
    for id_ in (relative, absolute, both):
        assert (await engine.executions.describe(id_)).state is State.EXPIRED


async def test_absolute_deadline_in_the_past_is_refused(engine: Engine, clock: VirtualClock) -> None:
    for deadline in (clock.now(), clock.now() - timedelta(days=1)):
        error = await error_of(engine.executions.submit("job", deadline=deadline))
        assert isinstance(error, InvalidRequest)
        assert error.code == "deadline_in_past"
    assert (await engine.executions.list()).items == ()


async def test_expired_attempt_ends_and_its_worker_is_fenced_off(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=Policy(deadline="5s"))
    assert lease.deadline_at == clock.now() + timedelta(seconds=5)
    clock.advance("5s")
    await engine.reconcilers.tick()
    execution, event = (
        await engine.executions.describe(lease.execution_id),
        await last_event(engine, lease.execution_id),
    )
    assert [attempt.outcome for attempt in execution.attempts] == [AttemptOutcome.FAILURE]
    assert (event.ends_lease, event.epoch, event.worker) == (True, lease.epoch + 1, lease.worker)
    await every_write_is_refused(engine, lease.fence, "execution_not_active")


async def test_delay_retry_and_hold_do_not_move_the_deadline(engine: Engine, clock: VirtualClock) -> None:
    deadline = clock.now() + timedelta(hours=1)
    lease = await leased(engine, policy=STEADY, deadline=deadline)
    id_ = lease.execution_id
    await engine.leases.delay(lease.fence, after="1m")
    assert (await engine.executions.describe(id_)).deadline_at == deadline
    await engine.operator.hold(id_)
    await engine.operator.unhold(id_)
    clock.advance("1m")
    await engine.reconcilers.tick()
    next_lease = await engine.leases.claim_execution(id_, "worker-2")
    await engine.leases.fail(next_lease.fence, "not yet")
    assert (await engine.executions.describe(id_)).deadline_at == next_lease.deadline_at == deadline
    clock.advance("10s")
    await engine.reconcilers.tick()
    await engine.leases.claim_execution(id_, "worker-3")
    clock.advance("30s")
    await engine.reconcilers.tick()
    execution = await engine.executions.describe(id_)
    assert (execution.state, execution.deadline_at) == (State.WAITING, deadline)


async def test_delay_beyond_the_deadline_ends_at_the_deadline(engine: Engine, clock: VirtualClock) -> None:
    id_ = await submitted(engine, delay="2h", policy=Policy(deadline="1h"))
    execution = await engine.executions.describe(id_)
    assert execution.ready_at == clock.now() + timedelta(hours=2)
    clock.advance("1h")
    await engine.reconcilers.tick()
    assert await event_names(engine, id_) == ["completion.expired"]


def make_submit(deadline: str) -> Callable[..., Any]:
    """Return a replacement for `submitted` that sets this deadline in the policy of each submission."""

    async def submit(engine: Engine, *arguments: Any, **options: Any) -> UUID:
        policy = replace(options.pop("policy", Policy()), deadline=deadline)
        return await submitted(engine, *arguments, policy=policy, **options)

    return submit


async def test_delayed_work_becomes_ready_and_a_deadline_applies_in_every_state(
    engine: Engine, clock: VirtualClock
) -> None:
    policy = Policy(deadline="1m")
    woken = await submitted(engine, delay="10s")
    active = await leased(engine, policy=policy, lease_ttl="1h")
    kept_lease = await leased(engine, policy=Policy(deadline="1m", on_lease_loss=OnLeaseLoss.HAND_OFF))
    await engine.operator.revoke_lease(kept_lease.execution_id)
    held = await submitted(engine, policy=policy)
    await engine.operator.hold(held)
    due = [await submitted(engine, policy=policy), await submitted(engine, policy=policy, delay="1h"), held]
    due += [active.execution_id, kept_lease.execution_id]
    clock.advance("10s")
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(woken)).state == State.WAITING
    clock.advance("50s")
    await engine.reconcilers.tick()
    assert {(await engine.executions.describe(id_)).state for id_ in due} == {State.EXPIRED}
