"""Operations on the register of workers: register, heartbeat, list, mark dead and sweep. They never touch leases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from flowfabric.core.executions.outcomes import AlreadySatisfied
from flowfabric.core.executions.records import Event
from flowfabric.core.executions.requests import AuditInfo
from flowfabric.core.workers import (
    MarkedDead,
    Registered,
    Registration,
    WorkerInfo,
    decide_registration,
    worker_not_found,
)
from flowfabric.ops.operation import operation
from flowfabric.store.transaction import Transaction


@operation()
async def register_worker(tx: Transaction, namespace: str, registration: Registration) -> Registered:
    """Register a worker or replace its registration; only a new registration appends an event."""
    # Insert before reading: if two transactions register the same instance, the second waits and sees the first.
    worker = decide_registration(None, registration, namespace, await tx.now())
    if await tx.workers.add(worker):
        return await _append_registered(tx, worker)
    existing = await tx.workers.lock(namespace, registration.id.instance)
    if existing is None:
        # The worker was removed between the two statements.
        return await register_worker.run(tx, namespace, registration)
    worker = decide_registration(existing, registration, namespace, await tx.now())
    await tx.workers.change(worker)
    if existing.registered_at == worker.registered_at:
        return Registered(worker.expires_at, refreshed=True)
    return await _append_registered(tx, worker)


async def _append_registered(tx: Transaction, worker: WorkerInfo) -> Registered:
    event = Event(
        namespace=worker.namespace,
        family="worker",
        name="registered",
        at=worker.seen_at,
        lane="",
        worker=worker.id,
        details={"lanes": list(worker.lanes), "capabilities": list(worker.capabilities), "host": worker.host},
    )
    await tx.events.append([event])
    return Registered(worker.expires_at, refreshed=False)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life of a worker, with the number of its busy slots."""

    instance: str
    busy: int


@operation(single_statement=True)
async def heartbeat_worker(tx: Transaction, namespace: str, heartbeat: Heartbeat) -> datetime:
    """Extend the registration of a worker, and return when it expires."""
    expires_at = await tx.workers.beat(namespace, heartbeat.instance, heartbeat.busy)
    if expires_at is None:
        raise worker_not_found(heartbeat.instance)
    return expires_at


@dataclass(frozen=True, slots=True)
class WorkerListing:
    """A page of live workers: at most `limit` of one lane, or of all lanes, whose instance sorts after `after`."""

    lane: str | None
    after: str
    limit: int


@operation(read_only=True)
async def list_workers(tx: Transaction, namespace: str, listing: WorkerListing) -> list[WorkerInfo]:
    """Return a page of the live workers, in order of instance."""
    return await tx.workers.page(namespace, listing.lane, await tx.now(), listing.limit, after=listing.after)


@dataclass(frozen=True, slots=True)
class MarkDead:
    """An operator's removal of a worker."""

    instance: str
    audit: AuditInfo


@operation()
async def mark_worker_dead(tx: Transaction, namespace: str, request: MarkDead) -> MarkedDead | AlreadySatisfied:
    """Remove a worker instance from the register, and append an event."""
    worker = await tx.workers.lock(namespace, request.instance)
    if worker is None:
        return AlreadySatisfied("not_registered")
    await tx.workers.remove(namespace, request.instance)
    event = Event(
        namespace=namespace,
        family="worker",
        name="marked_dead",
        at=await tx.now(),
        lane="",
        worker=worker.id,
        principal=request.audit.principal,
        reason=request.audit.reason,
    )
    await tx.events.append([event])
    return MarkedDead(request.instance)


async def lapsed_workers(tx: Transaction, now: datetime, limit: int) -> list[tuple[str, str]]:
    """Return the namespace and instance of each worker whose registration has expired."""
    return await tx.workers.list_lapsed(now, limit)


async def sweep_workers(tx: Transaction, instances: Sequence[tuple[str, str]]) -> int:
    """Remove these workers if they are still expired, write an event for each, and return how many were removed."""
    now = await tx.now()
    removed = await tx.workers.remove_lapsed(instances, now)
    await tx.events.append(
        [
            Event(
                namespace=worker.namespace,
                family="worker",
                name="swept",
                at=now,
                lane="",
                worker=worker.id,
                details={"seen_at": worker.seen_at.isoformat()},
            )
            for worker in removed
        ]
    )
    return len(removed)
