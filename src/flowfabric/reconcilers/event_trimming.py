"""Removes events that nobody waits for any more, and gives up named subscribers that are dead."""

from __future__ import annotations

import logging
from functools import partial

from flowfabric.core.trimming import EventKeeping
from flowfabric.ops.trim_events import expire_subscribers, trim_events, trim_events_apart
from flowfabric.reconcilers.duty import BATCH, Tick
from flowfabric.store.transaction import Store

_log = logging.getLogger("flowfabric.reconcilers")


class EventTrimming:
    """The duty over the time at which the events of a removed execution may go."""

    name = "event_trimming"

    def __init__(self, keeping: EventKeeping) -> None:
        self._keeping = keeping

    async def tick(self, store: Store) -> Tick:
        """Trims up to one batch of each kind."""
        for namespace, name in await store.run(partial(expire_subscribers, silence=self._keeping.subscriber_expiry)):
            _log.warning("subscriber %r of namespace %r was silent too long and is expired", name, namespace)
        gone = await store.run(partial(trim_events, limit=BATCH))
        apart = await store.run(partial(trim_events_apart, retention=self._keeping.retention, limit=BATCH))
        return Tick(self.name, gone + apart, failed=0, more=gone >= BATCH or apart >= BATCH)
