"""`engine.events`: subscribe to events, and show how far each subscriber has read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.events.cursor import Start, check_cursor, write_cursor
from flowfabric.core.events.subscribers import EventFamily, EventFilter, Subscriber
from flowfabric.core.ids import parse_id
from flowfabric.core.validation import parse_choice
from flowfabric.engine.context import Context
from flowfabric.engine.subscription import Subscription
from flowfabric.notify.listener import ListenerStatus
from flowfabric.ops.events import subscribe
from flowfabric.ops.events.eras import renew_era


@dataclass(frozen=True, slots=True)
class EventsStatus:
    """The status of the event log and of the listener.

    `held_back_since` is the time since which an open transaction has held events back, or None if no events are held
    back. `is_restored` is True if events were loaded from a dump of another server. The order of events from a dump has
    no meaning on this server. `era` counts how often the store went back to an earlier state, such as after a failover
    to an asynchronous standby, and `era_since` is the time when it last noticed that.
    """

    held_back_since: datetime | None
    listener: ListenerStatus
    is_restored: bool = False
    era: int = 0
    era_since: datetime | None = None


class Events:
    """Reads the events of the namespace in order, without missing any."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def subscribe(
        self,
        families: Sequence[EventFamily | str] | None = None,
        *,
        lane: str | None = None,
        kind: str | None = None,
        flow: UUID | str | None = None,
        execution: UUID | str | None = None,
        tags: Mapping[str, str] | None = None,
        start: Start | str = Start.NOW,
        cursor: str | None = None,
        name: str | None = None,
        follow: bool = True,
    ) -> Subscription:
        """Return a subscription to the events that match all filters.

        With `start`, it begins `now` or at the `beginning` of the stored events; with `cursor`, it begins after that
        cursor. With a `name`, the store keeps the subscriber's position, and keeps events until the subscriber has read
        them. `start` and `cursor` then apply only if the name is new. With `follow=False`, the subscription ends when
        all present events were read. Events are delivered only after all earlier transactions have ended, so that no
        event is missed.
        """
        start = parse_choice(Start, start, "start") if cursor is None else check_cursor(cursor)
        event_filter = EventFilter(
            namespace=self._context.namespace,
            families=None if families is None else _check_families(families),
            lane=None if lane is None else validation.name(lane, "lane"),
            kind=None if kind is None else validation.name(kind, "kind"),
            flow_id=None if flow is None else parse_id(flow, "flow"),
            execution_id=None if execution is None else parse_id(execution, "execution"),
            tags=None if tags is None else validation.tags(tags),
        )
        checked_name = None if name is None else validation.name(name, "name")
        return Subscription(
            self._context, event_filter, start, checked_name, follow=validation.boolean(follow, "follow")
        )

    async def cursor(self, start: Start | str = Start.NOW) -> str:
        """Return a cursor for the present time, or for the beginning of the stored events."""
        position = await self._context.call(subscribe.start_position, parse_choice(Start, start, "start"))
        return write_cursor(position.place, position.position)

    async def subscribers(self) -> list[Subscriber]:
        """Return all named subscribers of the namespace, by name."""
        return await self._context.call(subscribe.list_subscribers, None)

    async def unsubscribe(self, name: str) -> None:
        """Remove a named subscriber, so that the store no longer keeps events for it."""
        await self._context.call(subscribe.unsubscribe, validation.name(name, "name"))

    async def status(self) -> EventsStatus:
        """Return whether events are held back, and whether notifications from other processes arrive."""
        state = await self._context.call(subscribe.outbox_state, None)
        if state is None or not state.is_current:
            await self._context.call(renew_era, None)
            state = await self._context.call(subscribe.outbox_state, None)
        assert state is not None, "renew_era creates the row of the store"
        listener = self._context.wakeups.status()
        return EventsStatus(state.held_back_since, listener, state.from_elsewhere, state.era, state.era_since)


def _check_families(families: object) -> tuple[EventFamily, ...]:
    if isinstance(families, (str, bytes)) or not isinstance(families, Sequence):
        message = f"families must be a list of words, not {type(families).__name__}"
        raise InvalidRequest("invalid_type", message, field="families")
    return tuple(dict.fromkeys(parse_choice(EventFamily, family, "families") for family in families))
