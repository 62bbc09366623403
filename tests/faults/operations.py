"""Every operation that writes, with the state that it needs. The fault tests make each operation fail at every possible
point.

All operations are safe to repeat. A second call therefore has the complete effect, however the first call failed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from flowfabric.engine import (
    Backoff,
    BackoffKind,
    Conflict,
    Engine,
    Lease,
    OnAttemptTimeout,
    OnLeaseLoss,
    Policy,
    Step,
    Submission,
)
from flowfabric.testing import VirtualClock
from tests import scenarios
from tests.expectations import step_retry, taking_part

WORKER = scenarios.WORKER
STEPS = (Step("first", b"1"), Step("second", b"2"))
STEADY = Backoff(kind=BackoffKind.FIXED, initial="10s", jitter=False)

Arrange = Callable[[Engine, VirtualClock], Awaitable[Any]]
Act = Callable[[Engine, Any], Awaitable[Any]]


@dataclass(frozen=True)
class Operation:
    """`arrange` creates the state and returns the input of `act`; `act` is the call that is disturbed."""

    arrange: Arrange
    act: Act


async def nothing(engine: Engine, clock: VirtualClock) -> UUID:
    return uuid4()


async def lease(engine: Engine, clock: VirtualClock) -> Lease:
    return await scenarios.leased(engine, policy=Policy(backoff=STEADY))


async def last_lease(engine: Engine, clock: VirtualClock) -> Lease:
    return await scenarios.leased(engine, policy=scenarios.ONE_SHOT)


async def three_leases(engine: Engine, clock: VirtualClock) -> list[Lease]:
    return [await lease(engine, clock) for _ in range(3)]


async def granted(engine: Engine, clock: VirtualClock) -> Any:
    return await engine.operator.grant_reclaim(await scenarios.kept_expired(engine, clock), WORKER)


async def granted_too_often(engine: Engine, clock: VirtualClock) -> Any:
    policy = Policy(on_lease_loss=OnLeaseLoss.HAND_OFF, max_reclaims=0)
    execution_id = (await scenarios.leased(engine, policy=policy)).execution_id
    clock.advance("31s")
    await engine.reconcilers.tick()
    return await engine.operator.grant_reclaim(execution_id, WORKER)


async def reclaimed(engine: Engine, clock: VirtualClock) -> Lease:
    """Return a lease on an execution that is no longer standalone."""
    taken = await engine.leases.reclaim(await granted(engine, clock), WORKER)
    assert isinstance(taken, Lease)
    return taken


async def with_steps(engine: Engine, clock: VirtualClock) -> UUID:
    held_lease = await lease(engine, clock)
    await engine.leases.checkpoint(held_lease.fence, STEPS)
    await engine.leases.complete(held_lease.fence, b"out")
    return held_lease.execution_id


async def given_back(engine: Engine, clock: VirtualClock) -> UUID:
    held_lease = await lease(engine, clock)
    await engine.leases.release(held_lease.fence)
    return held_lease.execution_id


async def paused(engine: Engine, clock: VirtualClock) -> None:
    await engine.lanes.pause(scenarios.LANE)


async def two_held(engine: Engine, clock: VirtualClock) -> list[UUID]:
    return [await scenarios.held(engine, clock) for _ in range(2)]


async def transacted(engine: Engine, held_lease: Lease) -> object:
    """Run a step transaction. A repeated call is refused because its step is recorded."""
    try:
        return await engine.leases.transact(held_lease.fence, taking_part(engine), lambda _: STEPS[0])
    except Conflict as refused:
        if refused.code != "step_already_recorded":
            raise
        return None


def due_after(wait: str, **options: Any) -> Arrange:
    """Return a function that leases an execution with this policy and then advances the clock by `wait`."""

    async def arrange(engine: Engine, clock: VirtualClock) -> None:
        await scenarios.leased(engine, policy=Policy(**options))
        clock.advance(wait)

    return arrange


async def run_out_twice(engine: Engine, clock: VirtualClock) -> None:
    """Return two expired leases, for a duty that ends both in one transaction."""
    await scenarios.leased(engine)
    await scenarios.lease_expired(engine, clock)


async def ready(engine: Engine, clock: VirtualClock) -> None:
    await scenarios.delayed(engine, clock)
    clock.advance("2h")


async def past_deadline(engine: Engine, clock: VirtualClock) -> None:
    await scenarios.submitted(engine, policy=Policy(deadline="1s"))
    clock.advance("2s")


async def past_retention(engine: Engine, clock: VirtualClock) -> None:
    await engine.executions.submit("job", b"in", key="old", policy=Policy(retention="1h"))
    [found] = await engine.leases.claim([scenarios.LANE], WORKER)
    await engine.leases.complete(found.fence, b"out", steps=STEPS)
    clock.advance("2d")


async def registered(engine: Engine, clock: VirtualClock) -> None:
    await engine.workers.register(WORKER, [scenarios.LANE])


async def silent_worker(engine: Engine, clock: VirtualClock) -> None:
    await registered(engine, clock)
    clock.advance("2m")


async def past_event_retention(engine: Engine, clock: VirtualClock) -> None:
    """Return events of a purged execution that are old enough to be trimmed."""
    await past_retention(engine, clock)
    await engine.reconcilers.tick()
    clock.advance("8d")


async def old_events_apart(engine: Engine, clock: VirtualClock) -> None:
    await engine.lanes.pause("old")
    await engine.lanes.resume("old")
    clock.advance("8d")


def submissions(id_: UUID) -> list[Submission]:
    """Return a batch with only one item, because items with a chosen id never share a transaction."""
    return [Submission(kind="job", payload=b"in", id=id_)]


def duty(name: str) -> Act:
    """Return a function that runs this duty once."""

    async def act(engine: Engine, _: object) -> Any:
        [reconciler_duty] = [item for item in engine.reconcilers._duties if item.name == name]
        return await reconciler_duty.tick(engine._context.store)

    return act


async def claim_once(engine: Engine, id_: UUID) -> Lease:
    """Claim the execution, or return the lease of an earlier claim whose reply was lost."""
    for held_lease in await engine.leases.held(WORKER):
        if held_lease.execution_id == id_:
            return held_lease
    return await engine.leases.claim_execution(id_, WORKER)


async def claim_resumed_once(engine: Engine, id_: UUID) -> Lease:
    """Claim the resumed execution, or return the lease of an earlier claim whose reply was lost."""
    held = [held_lease for held_lease in await engine.leases.held(WORKER) if held_lease.execution_id == id_]
    return held[0] if held else await engine.leases.claim_resumed(id_, WORKER)


async def reclaim_at_last(engine: Engine, grant: Any) -> Any:
    """Reclaim once more than the policy allows, which fails the execution.

    A repeated call returns the outcome of the execution.
    """
    outcome = await engine.executions.result(grant.execution_id)
    return outcome or await engine.leases.reclaim(grant, WORKER)


OPERATIONS: dict[str, Operation] = {
    "submit": Operation(nothing, lambda e, id_: e.executions.submit("job", b"in", id=id_)),
    "submit with a key": Operation(nothing, lambda e, id_: e.executions.submit("job", b"in", key="once")),
    "submit with a delay": Operation(nothing, lambda e, id_: e.executions.submit("job", b"in", id=id_, delay="1h")),
    "submit_many": Operation(nothing, lambda e, id_: e.executions.submit_many(submissions(id_))),
    "claim": Operation(scenarios.waiting, lambda e, id_: e.leases.claim([scenarios.LANE], WORKER, limit=2)),
    "claim_execution": Operation(scenarios.waiting, claim_once),
    "claim_resumed": Operation(given_back, claim_resumed_once),
    "checkpointing": Operation(lease, lambda e, found: e.leases.checkpoint_nowait(found.fence, STEPS)),
    "renew": Operation(lease, lambda e, found: e.leases.renew(found.fence)),
    "renew_many": Operation(three_leases, lambda e, found: e.leases.renew_many([item.fence for item in found])),
    "progress": Operation(lease, lambda e, found: e.leases.progress(found.fence, 50, "half")),
    "checkpoint": Operation(lease, lambda e, found: e.leases.checkpoint(found.fence, STEPS)),
    "complete": Operation(lease, lambda e, found: e.leases.complete(found.fence, b"out")),
    "complete with steps": Operation(lease, lambda e, found: e.leases.complete(found.fence, b"out", steps=STEPS)),
    "complete, not plain": Operation(reclaimed, lambda e, found: e.leases.complete(found.fence, b"out")),
    "complete_many": Operation(
        three_leases, lambda e, found: e.leases.complete_many([(item.fence, b"out") for item in found])
    ),
    "fail, to be retried": Operation(lease, lambda e, found: e.leases.fail(found.fence, "not yet", steps=STEPS)),
    "fail, for good": Operation(last_lease, lambda e, found: e.leases.fail(found.fence, "broken")),
    "delay": Operation(lease, lambda e, found: e.leases.delay(found.fence, after="1h", steps=STEPS)),
    "release": Operation(lease, lambda e, found: e.leases.release(found.fence)),
    "transact": Operation(lease, transacted),
    "own hold": Operation(lease, lambda e, found: e.leases.hold(found.fence, "diverged", "look at it", steps=STEPS)),
    "postpone": Operation(
        lease, lambda e, found: e.leases.postpone(found.fence, "run_failed", "no", version="v", steps=STEPS)
    ),
    "retry_steps": Operation(lease, lambda e, found: e.leases.retry_steps(found.fence, *step_retry("charge"))),
    "own cancel": Operation(lease, lambda e, found: e.leases.cancel(found.fence, "no use")),
    "reclaim": Operation(granted, lambda e, grant: e.leases.reclaim(grant, WORKER)),
    "reclaim, once too often": Operation(granted_too_often, reclaim_at_last),
    "operator cancel": Operation(scenarios.active, lambda e, id_: e.operator.cancel(id_, "not wanted")),
    "revoke_lease": Operation(scenarios.active, lambda e, id_: e.operator.revoke_lease(id_)),
    "revoke_lease, kept": Operation(
        lambda e, clock: scenarios.leased(e, policy=scenarios.KEEPING),
        lambda e, found: e.operator.revoke_lease(found.execution_id),
    ),
    "grant_reclaim": Operation(scenarios.kept_expired, lambda e, id_: e.operator.grant_reclaim(id_, WORKER)),
    "change_priority": Operation(scenarios.waiting, lambda e, id_: e.operator.change_priority(id_, 7)),
    "hold": Operation(scenarios.waiting, lambda e, id_: e.operator.hold(id_, "look at it")),
    "unhold": Operation(scenarios.held, lambda e, id_: e.operator.unhold(id_)),
    "unhold_all": Operation(two_held, lambda e, ids: e.operator.unhold_all()),
    "replay": Operation(with_steps, lambda e, id_: e.operator.replay(id_, expected_generation=0)),
    "replay from a step": Operation(
        with_steps, lambda e, id_: e.operator.replay(id_, from_step="second", expected_generation=0)
    ),
    "set_tags": Operation(scenarios.waiting, lambda e, id_: e.executions.set_tags(id_, {"a.b": "c"})),
    "pause a lane": Operation(nothing, lambda e, _: e.lanes.pause(scenarios.LANE)),
    "drain a lane": Operation(nothing, lambda e, _: e.lanes.drain(scenarios.LANE)),
    "resume a lane": Operation(paused, lambda e, _: e.lanes.resume(scenarios.LANE)),
    "lease expiry": Operation(run_out_twice, duty("lease_expiry")),
    "lease expiry, kept": Operation(due_after("31s", on_lease_loss=OnLeaseLoss.HAND_OFF), duty("lease_expiry")),
    "lease expiry, once too often": Operation(due_after("31s", max_reclaims=0), duty("lease_expiry")),
    "delayed work": Operation(ready, duty("delayed_work")),
    "attempt timeout, to be retried": Operation(
        due_after("6s", attempt_timeout="5s", backoff=STEADY), duty("attempt_timeout")
    ),
    "attempt timeout, for good": Operation(
        due_after("6s", attempt_timeout="5s", on_attempt_timeout=OnAttemptTimeout.EXPIRE), duty("attempt_timeout")
    ),
    "deadline": Operation(past_deadline, duty("deadline")),
    "retention": Operation(past_retention, duty("retention")),
    "register a worker": Operation(nothing, lambda e, _: e.workers.register(WORKER, [scenarios.LANE])),
    "heartbeat of a worker": Operation(registered, lambda e, _: e.workers.heartbeat(WORKER, busy=1)),
    "mark a worker dead": Operation(registered, lambda e, _: e.workers.mark_dead(WORKER, "on fire")),
    "worker liveness": Operation(silent_worker, duty("worker_liveness")),
    "event trimming": Operation(past_event_retention, duty("event_trimming")),
    "event trimming, of lanes": Operation(old_events_apart, duty("event_trimming")),
}
