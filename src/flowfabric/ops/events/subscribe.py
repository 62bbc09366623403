"""Operations of a subscriber: find the start, read the next page of events, and take or release a named subscriber."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from flowfabric.core.events.cursor import (
    FIRST,
    CursorScope,
    Position,
    Start,
    SubscriptionStart,
    read_cursor,
    require_kept,
)
from flowfabric.core.events.subscribers import (
    HOLD_TTL,
    MAX_SCANNED_EVENTS,
    EventFilter,
    EventPage,
    OutboxState,
    Subscriber,
    lost_subscription,
    may_hold,
    subscriber_not_found,
)
from flowfabric.ops.operation import operation
from flowfabric.store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class SubscriberHold:
    """The name of a subscriber, and the id of the reader that holds it."""

    name: str
    holder: UUID


@dataclass(frozen=True, slots=True)
class TakeRequest:
    """A reader that takes a named subscriber; a new subscriber starts at `start`."""

    hold: SubscriberHold
    start: Start | str


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """The position up to which a named subscriber has processed everything."""

    hold: SubscriberHold
    position: Position


@dataclass(frozen=True, slots=True)
class EventQuery:
    """A request for the next events that come after a position and pass a filter."""

    filter: EventFilter
    after: Position


@operation(read_only=True)
async def outbox_state(tx: Transaction, namespace: str, _: None) -> OutboxState:
    """Return the position of the newest event, and the position up to which old events were removed."""
    return await tx.events.outbox_state()


@operation(read_only=True)
async def start_position(tx: Transaction, namespace: str, start: Start | str) -> SubscriptionStart:
    """Return the position that `start` stands for (a cursor, or an end of the log), and the scope of later cursors."""
    state = await tx.events.outbox_state()
    scope = CursorScope(state.store, namespace)
    if start == Start.NOW:
        return SubscriptionStart(scope, state.present, state.trimmed)
    if start == Start.BEGINNING:
        return SubscriptionStart(scope, FIRST, state.trimmed)
    return SubscriptionStart(scope, require_kept(read_cursor(start, scope), state.trimmed), state.trimmed)


@operation(read_only=True, single_statement=True)
async def read_page(tx: Transaction, namespace: str, query: EventQuery) -> EventPage:
    """Return the next events that pass the filter."""
    return await tx.events.read(query.filter, query.after, MAX_SCANNED_EVENTS)


@operation()
async def take_subscriber(tx: Transaction, namespace: str, request: TakeRequest) -> tuple[CursorScope, Position | None]:
    """Take a named subscriber. Return the cursor scope, and the position to continue at or None if others hold it."""
    name, holder = request.hold.name, request.hold.holder
    scope = CursorScope((await tx.events.outbox_state()).store, namespace)
    subscriber = await tx.subscribers.lock(namespace, name)
    if subscriber is None:
        start = await start_position.run(tx, namespace, request.start)
        await tx.subscribers.add(namespace, name, start.position, await tx.now())
        subscriber = await tx.subscribers.lock(namespace, name)
        assert subscriber is not None, "this or another transaction has added the subscriber"
    now = await tx.now()
    if not may_hold(subscriber, holder, now):
        return scope, None
    await tx.subscribers.hold(namespace, name, holder, now, now + HOLD_TTL)
    return scope, subscriber.position


@operation()
async def commit_position(tx: Transaction, namespace: str, request: CommitRequest) -> None:
    """Store the position of a named subscriber; refuse if the reader no longer holds that subscriber."""
    name, holder = request.hold.name, request.hold.holder
    until = await tx.now() + HOLD_TTL
    if not await tx.subscribers.commit(namespace, name, holder, request.position, until):
        raise lost_subscription(await tx.subscribers.lock(namespace, name), name)


@operation()
async def release_subscriber(tx: Transaction, namespace: str, hold: SubscriberHold) -> None:
    """Let another reader take the subscriber immediately."""
    await tx.subscribers.release(namespace, hold.name, hold.holder)


@operation(can_repeat=False)
async def unsubscribe(tx: Transaction, namespace: str, name: str) -> None:
    """Remove a named subscriber, so that no events are kept for it."""
    if not await tx.subscribers.remove(namespace, name):
        raise subscriber_not_found(name)


@operation(read_only=True)
async def list_subscribers(tx: Transaction, namespace: str, _: None) -> list[Subscriber]:
    """Return all named subscribers of the namespace, by name."""
    subscribers: list[Subscriber] = []
    while page := await tx.subscribers.page(namespace, subscribers[-1].name if subscribers else "", MAX_SCANNED_EVENTS):
        subscribers += page
    return subscribers
