"""Operations of a subscriber: find the start, read the next page of events, and take or release a named subscriber."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
from flowfabric.ops.events.eras import current_state, known_position
from flowfabric.ops.operation import operation
from flowfabric.store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class SubscriberHold:
    """The name of a subscriber, and the id of the reader that holds it."""

    name: str
    holder: UUID


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """A position that a reader has read up to, and the store, namespace and era in which it did so."""

    scope: CursorScope
    position: Position


@dataclass(frozen=True, slots=True)
class TakeRequest:
    """A reader that takes a named subscriber.

    A new subscriber starts at `start`. If the store went back and lost the subscriber, it continues at `resume`.
    """

    hold: SubscriberHold
    start: Start | str
    resume: ResumeRequest | None = None


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """The position up to which a named subscriber has processed everything, and the scope in which it was read."""

    hold: SubscriberHold
    scope: CursorScope
    position: Position


@dataclass(frozen=True, slots=True)
class EventQuery:
    """A request for the next events that come after a position and pass a filter."""

    filter: EventFilter
    after: Position


@operation(read_only=True)
async def outbox_state(tx: Transaction, namespace: str, _: None) -> OutboxState | None:
    """Return the position of the newest event, and the position up to which old events were removed."""
    return await tx.events.outbox_state()


@operation()
async def start_position(tx: Transaction, namespace: str, start: Start | str) -> SubscriptionStart:
    """Return the position that `start` stands for (a cursor, or an end of the log), and the scope of later cursors."""
    state = await current_state(tx)
    scope = CursorScope(state.store, namespace, state.era)
    if start == Start.NOW:
        # The position is stored, so that the numbers of later transactions are higher, even after a crash.
        await tx.eras.note_known(scope, state.present)
        return SubscriptionStart(scope, state.present, state.trimmed)
    if start == Start.BEGINNING:
        return SubscriptionStart(scope, FIRST, state.trimmed)
    era, position = read_cursor(start, scope)
    return await _resume(tx, namespace, ResumeRequest(replace(scope, era=era), position))


@operation()
async def resume_position(tx: Transaction, namespace: str, request: ResumeRequest) -> SubscriptionStart:
    """Return where a reader continues after the store went back: at the last position that the store knows."""
    return await _resume(tx, namespace, request)


async def _resume(tx: Transaction, namespace: str, request: ResumeRequest) -> SubscriptionStart:
    state = await _state_after(tx, request)
    position = await known_position(tx, state, request.scope, request.position)
    scope = CursorScope(state.store, namespace, state.era)
    return SubscriptionStart(scope, require_kept(position, state.trimmed), state.trimmed)


async def _state_after(tx: Transaction, request: ResumeRequest | None) -> OutboxState:
    """Return the state of the event log. Begin a new era first if the store does not know the requested position."""
    state = await current_state(tx)
    if request is None or request.scope.store != state.store:
        return state
    return await current_state(tx, request.scope.era, request.position)


@operation(single_statement=True)
async def note_known(tx: Transaction, namespace: str, request: ResumeRequest) -> None:
    """Store that subscribers have read up to a position, so that a later era need not start before it."""
    await tx.eras.note_known(request.scope, request.position)


@operation(read_only=True, single_statement=True)
async def read_page(tx: Transaction, namespace: str, query: EventQuery) -> EventPage:
    """Return the next events that pass the filter."""
    return await tx.events.read(query.filter, query.after, MAX_SCANNED_EVENTS)


@operation()
async def take_subscriber(tx: Transaction, namespace: str, request: TakeRequest) -> tuple[CursorScope, Position | None]:
    """Take a named subscriber. Return the cursor scope, and the position to continue at or None if others hold it."""
    name, holder = request.hold.name, request.hold.holder
    state = await _state_after(tx, request.resume)
    scope = CursorScope(state.store, namespace, state.era)
    subscriber = await tx.subscribers.lock(namespace, name)
    if subscriber is None:
        await tx.subscribers.add(namespace, name, await _first_position(tx, namespace, request), await tx.now())
        subscriber = await tx.subscribers.lock(namespace, name)
        assert subscriber is not None, "this or another transaction has added the subscriber"
    now = await tx.now()
    if not may_hold(subscriber, holder, now):
        return scope, None
    await tx.subscribers.hold(namespace, name, holder, now, now + HOLD_TTL)
    return scope, subscriber.position


async def _first_position(tx: Transaction, namespace: str, request: TakeRequest) -> Position:
    if request.resume is not None:
        return (await _resume(tx, namespace, request.resume)).position
    return (await start_position.run(tx, namespace, request.start)).position


@operation()
async def commit_position(tx: Transaction, namespace: str, request: CommitRequest) -> bool:
    """Store the position of a named subscriber, and return True. Refuse if the reader no longer holds the subscriber.

    Return False if the store went back to an earlier state. The position then counts no longer.
    """
    name, holder = request.hold.name, request.hold.holder
    until = await tx.now() + HOLD_TTL
    if await tx.subscribers.commit(request.scope, name, holder, request.position, until):
        return True
    state = await _state_after(tx, ResumeRequest(request.scope, request.position))
    if (state.store, state.era) != (request.scope.store, request.scope.era):
        return False
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
