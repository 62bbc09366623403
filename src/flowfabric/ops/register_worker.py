"""register_worker: a worker tells that it is there, and what it offers."""

from __future__ import annotations

from flowfabric.core.records import Event
from flowfabric.core.workers import Registered, Registration, decide_registration
from flowfabric.store.transaction import Transaction


async def register_worker(tx: Transaction, namespace: str, asked: Registration) -> Registered:
    """Until when it counts as live. Again, it replaces what was known; an event tells of new ones only."""
    known = await tx.workers.lock(namespace, asked.id.instance)
    now = await tx.now()
    worker = decide_registration(known, asked, namespace, now)
    await tx.workers.put(worker)
    refreshed = known is not None and known.registered_at == worker.registered_at
    if not refreshed:
        event = Event(
            namespace=namespace, family="worker", name="registered", at=now, lane="", worker=worker.id,
            details={"lanes": list(worker.lanes), "capabilities": list(worker.capabilities), "host": worker.host},
        )  # fmt: skip
        await tx.events.append([event])
    return Registered(worker.expires_at, refreshed)
