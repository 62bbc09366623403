"""register_worker: a worker tells that it is there, and what it offers."""

from __future__ import annotations

from flowfabric.core.records import Event
from flowfabric.core.workers import Registered, Registration, Worker, decide_registration
from flowfabric.store.transaction import Transaction


async def register_worker(tx: Transaction, namespace: str, asked: Registration) -> Registered:
    """Until when it counts as live. Again, it replaces what was known; an event tells of new ones only."""
    # The insert comes first: of two who register an instance at once, the second sees the first.
    worker = decide_registration(None, asked, namespace, await tx.now())
    if await tx.workers.add(worker):
        return await _note(tx, worker)
    known = await tx.workers.lock(namespace, asked.id.instance)
    if known is None:
        # It was taken out of the register in this moment.
        return await register_worker(tx, namespace, asked)
    worker = decide_registration(known, asked, namespace, await tx.now())
    await tx.workers.change(worker)
    if known.registered_at == worker.registered_at:
        return Registered(worker.expires_at, refreshed=True)
    return await _note(tx, worker)


async def _note(tx: Transaction, worker: Worker) -> Registered:
    event = Event(
        namespace=worker.namespace, family="worker", name="registered", at=worker.seen_at, lane="", worker=worker.id,
        details={"lanes": list(worker.lanes), "capabilities": list(worker.capabilities), "host": worker.host},
    )  # fmt: skip
    await tx.events.append([event])
    return Registered(worker.expires_at, refreshed=False)
