"""mark_worker_dead and the sweep: workers leave the register, with an event. Leases are not touched."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from flowfabric.core.outcomes import AlreadySatisfied
from flowfabric.core.records import Event
from flowfabric.core.requests import Command
from flowfabric.core.workers import MarkedDead
from flowfabric.store.transaction import Transaction


async def mark_worker_dead(
    tx: Transaction, namespace: str, instance: str, command: Command
) -> MarkedDead | AlreadySatisfied:
    """Takes the instance out of the register, if it is there."""
    worker = await tx.workers.lock(namespace, instance)
    if worker is None:
        return AlreadySatisfied("not_registered")
    await tx.workers.remove(namespace, instance)
    event = Event(
        namespace=namespace, family="worker", name="marked_dead", at=await tx.now(), lane="", worker=worker.id,
        principal=command.principal, reason=command.reason,
    )  # fmt: skip
    await tx.events.append([event])
    return MarkedDead(instance)


async def lapsed_workers(tx: Transaction, now: datetime, limit: int) -> list[tuple[str, str]]:
    """Namespaces and instances of those that have not been heard of in time."""
    return await tx.workers.lapsed(now, limit)


async def sweep_workers(tx: Transaction, instances: Sequence[tuple[str, str]]) -> int:
    """How many of these were taken out; one that was heard of meanwhile stays."""
    now = await tx.now()
    gone = await tx.workers.remove_lapsed(instances, now)
    await tx.events.append([
        Event(
            namespace=worker.namespace, family="worker", name="swept", at=now, lane="", worker=worker.id,
            details={"seen_at": worker.seen_at.isoformat()},
        )
        for worker in gone
    ])  # fmt: skip
    return len(gone)
