"""Destroys the secrets of retired keys when nothing can be verified with them any more."""

from __future__ import annotations

from flowfabric.ops.key_ring import collect_keys
from flowfabric.reconcilers.duty import Tick
from flowfabric.store.transaction import Store


class KeyCollection:
    """The duty over a retired key's `verifies_until`."""

    name = "key_collection"

    async def tick(self, store: Store) -> Tick:
        """Collects every key whose window is over."""
        return Tick(self.name, await store.run(collect_keys), failed=0, more=False)
