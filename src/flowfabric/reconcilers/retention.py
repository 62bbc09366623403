"""Removes terminal executions when their retention has passed, and idempotency keys when their window has."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from flowfabric.ops.purge import drop_expired_keys, expired_keys, purge
from flowfabric.reconcilers.duty import REMOVED, Duty, RowDuty, Tick
from flowfabric.store.transaction import Store


class Retention(Duty):
    """The duty over `purge_at`, which also looks after the expiry of keys."""

    def __init__(self, keep_events: timedelta) -> None:
        super().__init__("retention", partial(purge, keep_events=keep_events), REMOVED)
        self._keys = RowDuty("retention", expired_keys, drop_expired_keys, REMOVED)

    async def tick(self, store: Store) -> Tick:
        """Removes up to one batch of each."""
        return (await super().tick(store)).and_also(await self._keys.tick(store))
