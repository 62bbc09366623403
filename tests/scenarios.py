"""Ways to bring an execution into every state it can be in, by nothing but the contract."""

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
)  # fmt: skip
from flowfabric.testing import VirtualClock

WORKER = "worker-1"
LANE = "default"
KEEPING = Policy(on_lease_loss=OnLeaseLoss.HAND_OFF)
ONE_SHOT = Policy(max_retries=0)
STEADY = Policy(backoff=Backoff(kind=BackoffKind.FIXED, initial="10s", jitter=False))


async def submitted(engine: Engine, kind: str = "job", payload: bytes = b"in", **options: Any) -> UUID:
    """The id of a fresh execution."""
    answer = await engine.executions.submit(kind, payload, **options)
    assert isinstance(answer, Created)
    return answer.id


async def leased(engine: Engine, *, lease_ttl: Any = None, worker: str = WORKER, **options: Any) -> Lease:
    """A lease on a fresh execution, claimed by its id."""
    id_ = await submitted(engine, **options)
    return await engine.leases.claim_execution(id_, worker, lease_ttl=lease_ttl)


@dataclass(frozen=True)
class Wait:
    """A suspended execution, the lease that it gave up, and what its worker was answered."""

    lease: Lease
    answer: Suspended

    @property
    def id(self) -> UUID:
        return self.lease.execution_id

    @property
    def suspension(self) -> UUID:
        return self.answer.suspension_id

    def token(self, key: str = "go") -> Secret:
        """The token of a waitpoint."""
        found = self.answer.token(key)
        assert found is not None
        return found

    def waitpoint(self, key: str = "go") -> UUID:
        """The id of a waitpoint."""
        return next(item.id for item in self.answer.waitpoints if item.key == key)


async def suspended(
    engine: Engine, waitpoints: Sequence[Any] = ("go",), condition: Condition | None = None, *,
    lease: Lease | None = None, submit: dict[str, Any] | None = None, **options: Any,
) -> Wait:  # fmt: skip
    """A fresh execution, or the one under this lease, that waits on these waitpoints."""
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


async def run_out(engine: Engine, clock: VirtualClock) -> UUID:
    """Active under a lease whose time has passed, and nobody has noticed."""
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

# Every situation an execution can be in, by name; the word before the colon is its stored state.
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
    "active: lease run out": run_out,
    "active: kept, lease expired": kept_expired,
    "active: kept, lease revoked": kept_revoked,
    "suspended": waits_for_signal,
    "completed": completed,
    "failed": failed,
    "cancelled": cancelled,
    "expired": expired,
}
