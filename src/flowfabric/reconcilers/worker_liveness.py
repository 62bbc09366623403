"""Takes workers out of the register that have not been heard of in time."""

from __future__ import annotations

from functools import partial

from flowfabric.ops.remove_worker import sweep_workers
from flowfabric.reconcilers.duty import BATCH, Tick
from flowfabric.store.transaction import Store


class WorkerLiveness:
    """The duty over a worker's `expires_at`."""

    name = "worker_liveness"

    async def tick(self, store: Store) -> Tick:
        """Sweeps up to one batch."""
        swept = await store.run(partial(sweep_workers, limit=BATCH))
        return Tick(self.name, swept, failed=0, more=swept >= BATCH)
