"""`engine.events`: subscribing to what happens, and how far subscribers are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from flowfabric.core import limits
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.ids import parse_id
from flowfabric.core.positions import Start, check_cursor, write_cursor
from flowfabric.core.requests import choice
from flowfabric.core.subscribing import EventFamily, EventFilter, Subscriber
from flowfabric.engine.context import Context
from flowfabric.engine.subscription import Subscription
from flowfabric.ops import subscribing
from flowfabric.wakeups.listening import ListenerStatus


@dataclass(frozen=True, slots=True)
class EventsStatus:
    """Since when events wait for a transaction that is still open, none if they do not; how the listener is; and
    whether events were loaded from a dump of another server, whose order means nothing to this one."""

    held_back_since: datetime | None
    listener: ListenerStatus
    from_elsewhere: bool = False


class Events:
    """Reads the events of the namespace in order, none missed."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def subscribe(
        self, families: Sequence[EventFamily | str] | None = None, *, lane: str | None = None, kind: str | None = None,
        flow: UUID | str | None = None, execution: UUID | str | None = None, tags: Mapping[str, str] | None = None,
        start: Start | str = Start.NOW, cursor: str | None = None, name: str | None = None, follow: bool = True,
    ) -> Subscription:  # fmt: skip
        """The events that match all filters, from `now`, from the `beginning` of what is kept, or after a cursor.

        Under a `name` the store keeps where the subscriber is, and events until it has passed them; `start` or `cursor`
        then count only for a new name. With `follow=False` it ends when everything was read. A transaction that stays
        open holds events back, whoever made it, but none is ever missed.
        """
        start = choice(Start, start, "start") if cursor is None else check_cursor(cursor)
        wanted = EventFilter(
            namespace=self._context.namespace, families=None if families is None else _families(families),
            lane=None if lane is None else limits.name(lane, "lane"),
            kind=None if kind is None else limits.name(kind, "kind"),
            flow_id=None if flow is None else parse_id(flow, "flow"),
            execution_id=None if execution is None else parse_id(execution, "execution"),
            tags=None if tags is None else limits.tags(tags),
        )  # fmt: skip
        known_as = None if name is None else limits.name(name, "name")
        return Subscription(self._context, wanted, start, known_as, follow=limits.truth(follow, "follow"))

    async def cursor(self, start: Start | str = Start.NOW) -> str:
        """A cursor for what happens from now on, or for the beginning of what is kept."""
        found = choice(Start, start, "start")
        beginning = await self._context.store.read(lambda tx: subscribing.begin(tx, self._context.namespace, found))
        return write_cursor(beginning.place, beginning.position)

    async def subscribers(self) -> list[Subscriber]:
        """All named subscribers of the namespace, by name."""
        return await self._context.store.read(lambda tx: subscribing.list_subscribers(tx, self._context.namespace))

    async def forget(self, name: str) -> None:
        """Removes a named subscriber, so that no events are kept for it any more."""
        found = limits.name(name, "name")
        await self._context.store.run(lambda tx: subscribing.forget(tx, self._context.namespace, found))

    async def status(self) -> EventsStatus:
        """Whether events are held back, and whether hints of other processes arrive."""
        state = await self._context.store.read(subscribing.outbox_state)
        return EventsStatus(state.held_back_since, self._context.wakeups.status(), state.from_elsewhere)


def _families(families: object) -> tuple[EventFamily, ...]:
    if isinstance(families, (str, bytes)) or not isinstance(families, Sequence):
        message = f"families must be a list of words, not {type(families).__name__}"
        raise InvalidRequest("invalid_type", message, field="families")
    return tuple(dict.fromkeys(choice(EventFamily, family, "families") for family in families))
