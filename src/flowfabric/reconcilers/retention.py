"""Removes terminal executions when their retention has passed, and idempotency keys when their window has."""

from __future__ import annotations

from functools import partial
from uuid import UUID

from flowfabric.ops.purge import drop_expired_keys, purge
from flowfabric.reconcilers.duty import BATCH, Tick
from flowfabric.store.transaction import Store, Transaction


class Retention:
    """The duty over `purge_at` and the expiry of keys."""

    name = "retention"

    async def tick(self, store: Store) -> Tick:
        """Removes up to one batch of each."""
        ids = await store.read(self._due)
        done = await store.run(partial(purge, ids=ids)) if ids else 0
        keys = await store.run(partial(drop_expired_keys, limit=BATCH))
        return Tick(self.name, done + keys, 0, more=len(ids) >= BATCH or keys >= BATCH)

    async def _due(self, tx: Transaction) -> list[UUID]:
        return await tx.due.ids(self.name, await tx.now(), BATCH)
