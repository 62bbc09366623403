"""list_workers: who is in the register."""

from __future__ import annotations

from flowfabric.core.workers import Worker
from flowfabric.store.transaction import Transaction

_PAGE = 500


async def list_workers(tx: Transaction, namespace: str, lane: str | None) -> list[Worker]:
    """The live workers, by instance; of one lane if asked."""
    now = await tx.now()
    found: list[Worker] = []
    after = ""
    while page := await tx.workers.page(namespace, after, _PAGE):
        after = page[-1].id.instance
        found += [worker for worker in page if worker.is_live(now) and (lane is None or lane in worker.lanes)]
    return found
