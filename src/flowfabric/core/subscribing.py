"""Named subscribers: who may read on under a name, and what is said to whoever may not."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from flowfabric.core.errors import FlowFabricError, NotFound, Refused
from flowfabric.core.positions import Position
from flowfabric.core.records import Event

HOLD = timedelta(seconds=30)
SCAN = 500


class EventFamily(StrEnum):
    """The kinds of events. A subscriber to `lease` also gets every other event that ends a lease."""

    LEASE = "lease"
    LIFECYCLE = "lifecycle"
    COMPLETION = "completion"
    SIGNAL = "signal"
    OPERATOR = "operator"
    FLOW = "flow"
    WORKER = "worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which events of a namespace are wanted; what is None lets all pass."""

    namespace: str
    families: tuple[EventFamily, ...] | None = None
    lane: str | None = None
    kind: str | None = None
    flow_id: UUID | None = None
    execution_id: UUID | None = None
    tags: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class EventPage:
    """What was found after a position: the wanted events with their places, and how far was looked. `held_back` says
    that later events exist which a transaction that is still open keeps from being read; `trimmed` is the last position
    that was removed."""

    events: tuple[tuple[Position, Event], ...]
    read_up_to: Position
    held_back: bool
    trimmed: Position


@dataclass(frozen=True, slots=True)
class OutboxState:
    """The store's own name, the last position that was trimmed, that of the present, and since when events wait for a
    transaction that is still open. `from_elsewhere` says that they wait for transactions of another server."""

    store: UUID
    trimmed: Position
    present: Position
    held_back_since: datetime | None
    from_elsewhere: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """A named subscriber. Everything up to its position has been processed."""

    namespace: str
    name: str
    position: Position
    holder: UUID | None
    held_until: datetime | None
    created_at: datetime
    seen_at: datetime
    expired_at: datetime | None


def may_hold(subscriber: Subscriber, holder: UUID, now: datetime) -> bool:
    """True if this holder may read on under the name now; raises if nobody may any more."""
    if subscriber.expired_at is not None:
        raise expired(subscriber)
    held_by_another = subscriber.holder is not None and subscriber.holder != holder
    return not (held_by_another and subscriber.held_until is not None and subscriber.held_until > now)


def why_lost(subscriber: Subscriber | None, name: str) -> FlowFabricError:
    """What the holder of a name is told whose commit found that it is not the holder."""
    if subscriber is None:
        return subscriber_not_found(name)
    if subscriber.expired_at is not None:
        return expired(subscriber)
    message = f"another process reads as {name!r} now, since this one was silent too long; subscribe again to stand by"
    return Refused("subscription_lost", message, name=name)


def expired(subscriber: Subscriber) -> FlowFabricError:
    """For a subscriber that was silent for so long that events are no longer kept for it."""
    message = (
        f"subscriber {subscriber.name!r} was silent since {subscriber.seen_at:%Y-%m-%d %H:%M:%S UTC}, and events were "
        "not kept for it any longer; forget it, and subscribe again from 'now' or the 'beginning'"
    )
    return Refused("cursor_expired", message, name=subscriber.name, seen_at=subscriber.seen_at)


def subscriber_not_found(name: str) -> NotFound:
    """For a name that nobody has subscribed under."""
    return NotFound("subscriber_not_found", f"there is no subscriber {name!r} in this namespace", name=name)
