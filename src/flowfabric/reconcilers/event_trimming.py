"""Removes events that nobody waits for any more, and gives up named subscribers that are dead."""

from __future__ import annotations

import logging
from functools import partial

from flowfabric.core.trimming import EventKeeping
from flowfabric.ops.trim_events import expire_subscribers, old_events_apart, trim_events, trim_events_apart
from flowfabric.reconcilers.duty import REMOVED, Duty, RowDuty, Tick
from flowfabric.store.transaction import Store

_log = logging.getLogger("flowfabric.reconcilers")


class EventTrimming(Duty):
    """The duty over the time at which the events of a removed execution may go, and over old events of none."""

    def __init__(self, keeping: EventKeeping) -> None:
        super().__init__("event_trimming", trim_events, REMOVED)
        self._keeping = keeping
        self._apart = RowDuty(self.name, partial(old_events_apart, retention=keeping.retention), trim_events_apart)

    async def tick(self, store: Store) -> Tick:
        """Trims up to one batch of each kind."""
        for namespace, name in await store.run(partial(expire_subscribers, silence=self._keeping.subscriber_expiry)):
            _log.warning("subscriber %r of namespace %r was silent too long and is expired", name, namespace)
        return (await super().tick(store)).and_also(await self._apart.tick(store))
