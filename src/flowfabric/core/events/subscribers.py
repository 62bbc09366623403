"""Event filters, and named subscribers. Only one process at a time may hold the name of a subscriber."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from flowfabric.core.errors import FlowFabricError, NotFound, Refused
from flowfabric.core.events.cursor import FIRST, Position
from flowfabric.core.executions.records import Event

HOLD_TTL = timedelta(seconds=30)
MAX_SCANNED_EVENTS = 500


class EventFamily(StrEnum):
    """The families of events.

    A subscriber to the family `lease` also gets the events of other families that end a lease.
    """

    LEASE = "lease"
    LIFECYCLE = "lifecycle"
    COMPLETION = "completion"
    SIGNAL = "signal"
    OPERATOR = "operator"
    FLOW = "flow"
    WORKER = "worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which events of a namespace to read. A field with the value None matches every event."""

    namespace: str
    families: tuple[EventFamily, ...] | None = None
    lane: str | None = None
    kind: str | None = None
    flow_id: UUID | None = None
    execution_id: UUID | None = None
    tags: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class EventPage:
    """Matching events after a position, and the position up to which the store was read.

    `held_back` is True if an open transaction keeps later events from being read. `trimmed` is the last trimmed
    position. `store` and `era` are those of the store. `is_current` is False if the store went back to an earlier state
    and the era does not show that yet. The events then count only after a new era has begun.
    """

    events: tuple[tuple[Position, Event], ...]
    read_up_to: Position
    held_back: bool
    trimmed: Position
    store: UUID | None
    era: int
    is_current: bool


@dataclass(frozen=True, slots=True)
class OutboxState:
    """The store's id, its last trimmed position, its newest position, and since when it has held events back.

    `from_elsewhere` is True if the open transactions that hold events back are from another server. `known` is a
    position that subscribers have read. `is_current` is False if the store is not in the timeline in which it was last
    used, and `is_new` is True if it was never used. `era_since` is the time when the store noticed that it went back.
    """

    store: UUID
    trimmed: Position
    present: Position
    held_back_since: datetime | None
    from_elsewhere: bool
    era: int = 0
    known: Position = FIRST
    is_current: bool = True
    is_new: bool = False
    era_since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """A named subscriber. It has processed all events up to `position`."""

    namespace: str
    name: str
    position: Position
    holder: UUID | None
    held_until: datetime | None
    created_at: datetime
    seen_at: datetime
    expired_at: datetime | None


def may_hold(subscriber: Subscriber, holder: UUID, now: datetime) -> bool:
    """Return True if the process `holder` may use the subscriber's name now; raise if the subscriber has expired."""
    if subscriber.expired_at is not None:
        raise expired_subscriber(subscriber)
    held_by_another = subscriber.holder is not None and subscriber.holder != holder
    return not (held_by_another and subscriber.held_until is not None and subscriber.held_until > now)


def lost_subscription(subscriber: Subscriber | None, name: str) -> FlowFabricError:
    """Return the error for a process that can no longer read as the subscriber with this name."""
    if subscriber is None:
        return subscriber_not_found(name)
    if subscriber.expired_at is not None:
        return expired_subscriber(subscriber)
    message = f"another process took over subscriber {name!r} while this one was silent; subscribe again to wait for it"
    return Refused("subscription_lost", message, name=name)


def expired_subscriber(subscriber: Subscriber) -> FlowFabricError:
    """Return the error for a subscriber whose silence lasted until the store no longer kept events for it."""
    message = (
        f"subscriber {subscriber.name!r} has been silent since {subscriber.seen_at:%Y-%m-%d %H:%M:%S UTC} and its "
        "events are no longer kept; unsubscribe it, then subscribe again from 'now' or the 'beginning'"
    )
    return Refused("cursor_expired", message, name=subscriber.name, seen_at=subscriber.seen_at)


def subscriber_not_found(name: str) -> NotFound:
    """Return the error for a name without a subscriber."""
    return NotFound("subscriber_not_found", f"subscriber {name!r} does not exist in this namespace", name=name)
