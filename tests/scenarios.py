"""Bring an execution into every possible state through the contract."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from flowfabric.engine import (
    Backoff,
    BackoffKind,
    Condition,
    Created,
    Engine,
    Lease,
    OnLeaseLoss,
    Policy,
    Secret,
    Suspended,
)
from flowfabric.testing import VirtualClock

WORKER = "worker-1"
LANE = "default"
KEEPING = Policy(on_lease_loss=OnLeaseLoss.HAND_OFF)
ONE_SHOT = Policy(max_retries=0)
STEADY = Policy(backoff=Backoff(kind=BackoffKind.FIXED, initial="10s", jitter=False))


async def submitted(engine: Engine, kind: str = "job", payload: bytes = b"in", **options: Any) -> UUID:
    """Submit a new execution and return its id."""
    answer = await engine.executions.submit(kind, payload, **options)
    assert isinstance(answer, Created)
    return answer.id


async def leased(engine: Engine, *, lease_ttl: Any = None, worker: str = WORKER, **options: Any) -> Lease:
    """Submit an execution, claim it by id and return the lease."""
    id_ = await submitted(engine, **options)
    return await engine.leases.claim_execution(id_, worker, lease_ttl=lease_ttl)


@dataclass(frozen=True)
class Wait:
    """A suspended execution, its former lease, and the reply to its suspend."""

    lease: Lease
    answer: Suspended

    @property
    def id(self) -> UUID:
        return self.lease.execution_id

    @property
    def suspension(self) -> UUID:
        return self.answer.suspension_id

    def token(self, key: str = "go") -> Secret:
        """Return the token of a waitpoint."""
        found = self.answer.token(key)
        assert found is not None
        return found

    def waitpoint(self, key: str = "go") -> UUID:
        """Return the id of a waitpoint."""
        return next(item.id for item in self.answer.waitpoints if item.key == key)


async def suspended(
    engine: Engine,
    waitpoints: Sequence[Any] = ("go",),
    condition: Condition | None = None,
    *,
    lease: Lease | None = None,
    submit: dict[str, Any] | None = None,
    **options: Any,
) -> Wait:
    """Suspend a new execution, or the one under this lease, on these waitpoints."""
    held = lease or await leased(engine, **(submit or {}))
    answer = await engine.leases.suspend(held.fence, list(waitpoints), condition, **options)
    assert isinstance(answer, Suspended)
    return Wait(held, answer)


async def waiting(engine: Engine, clock: VirtualClock) -> UUID:
    return await submitted(engine)


async def delayed(engine: Engine, clock: VirtualClock) -> UUID:
    return await submitted(engine, delay="1h")


async def held(engine: Engine, clock: VirtualClock) -> UUID:
    id_ = await submitted(engine)
    await engine.operator.hold(id_, "look at it")
    return id_


async def active(engine: Engine, clock: VirtualClock) -> UUID:
    return (await leased(engine)).execution_id


async def resumable(engine: Engine, clock: VirtualClock) -> UUID:
    lease = await leased(engine)
    await engine.leases.release(lease.fence)
    return lease.execution_id


async def waits_for_signal(engine: Engine, clock: VirtualClock) -> UUID:
    return (await suspended(engine)).id


async def resumed(engine: Engine, clock: VirtualClock) -> UUID:
    wait = await suspended(engine)
    await engine.signals.deliver(wait.token(), "approved")
    return wait.id


async def resting(engine: Engine, clock: VirtualClock) -> UUID:
    lease = await leased(engine)
    await engine.leases.delay(lease.fence, after="1h")
    return lease.execution_id


async def retrying(engine: Engine, clock: VirtualClock) -> UUID:
    lease = await leased(engine, policy=STEADY)
    await engine.leases.fail(lease.fence, "not yet")
    return lease.execution_id


async def requeued(engine: Engine, clock: VirtualClock) -> UUID:
    lease = await leased(engine)
    await engine.operator.revoke_lease(lease.execution_id)
    return lease.execution_id


async def lease_expired(engine: Engine, clock: VirtualClock) -> UUID:
    """Return an active execution whose lease has expired, but no duty has noticed that yet."""
    lease = await leased(engine)
    clock.advance("31s")
    return lease.execution_id


async def kept_expired(engine: Engine, clock: VirtualClock) -> UUID:
    lease = await leased(engine, policy=KEEPING)
    clock.advance("31s")
    await engine.reconcilers.tick()
    return lease.execution_id


async def kept_revoked(engine: Engine, clock: VirtualClock) -> UUID:
    lease = await leased(engine, policy=KEEPING)
    await engine.operator.revoke_lease(lease.execution_id)
    return lease.execution_id


async def completed(engine: Engine, clock: VirtualClock) -> UUID:
    lease = await leased(engine)
    await engine.leases.complete(lease.fence, b"out")
    return lease.execution_id


async def failed(engine: Engine, clock: VirtualClock) -> UUID:
    lease = await leased(engine, policy=ONE_SHOT)
    await engine.leases.fail(lease.fence, "broken")
    return lease.execution_id


async def cancelled(engine: Engine, clock: VirtualClock) -> UUID:
    id_ = await submitted(engine)
    await engine.operator.cancel(id_, "not wanted")
    return id_


async def expired(engine: Engine, clock: VirtualClock) -> UUID:
    id_ = await submitted(engine, policy=Policy(deadline="1s"))
    clock.advance("2s")
    await engine.reconcilers.tick()
    return id_


async def replayed(engine: Engine, clock: VirtualClock) -> UUID:
    id_ = await completed(engine, clock)
    await engine.operator.replay(id_)
    return id_


Situation = Callable[[Engine, VirtualClock], Awaitable[UUID]]

# Every situation of an execution by name. The word before the colon is its stored state.
SITUATIONS: dict[str, Situation] = {
    "waiting": waiting,
    "waiting: resumable": resumable,
    "waiting: resumed": resumed,
    "waiting: requeued": requeued,
    "waiting: replayed": replayed,
    "delayed": delayed,
    "delayed: resting": resting,
    "delayed: retrying": retrying,
    "blocked: held": held,
    "active": active,
    "active: lease run out": lease_expired,
    "active: kept, lease expired": kept_expired,
    "active: kept, lease revoked": kept_revoked,
    "suspended": waits_for_signal,
    "completed": completed,
    "failed": failed,
    "cancelled": cancelled,
    "expired": expired,
}


async def early(engine: Engine, lease: Lease, key: str = "go") -> Secret:
    """Create a waitpoint that no suspension uses yet, and return its token."""
    waitpoint = await engine.waitpoints.create(lease.fence, key)
    assert waitpoint.token is not None
    return waitpoint.token
