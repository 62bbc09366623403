"""Removes terminal executions when their retention has passed, and idempotency keys when their window has."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from flowfabric.ops.purge import drop_expired_keys, purge
from flowfabric.reconcilers.duty import BATCH, Duty, Tick
from flowfabric.store.transaction import Store


class Retention(Duty):
    """The duty over `purge_at`, which also looks after the expiry of keys."""

    def __init__(self, keep_events: timedelta) -> None:
        super().__init__("retention", partial(purge, keep_events=keep_events))

    async def tick(self, store: Store) -> Tick:
        """Removes up to one batch of each."""
        purged = await super().tick(store)
        keys = await store.run(partial(drop_expired_keys, limit=BATCH))
        return Tick(self.name, purged.done + keys, purged.failed, more=purged.more or keys >= BATCH)
