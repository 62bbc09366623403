"""Reading events as a subscriber: where to begin, the next page, and the steps of a named one."""

from __future__ import annotations

from uuid import UUID

from flowfabric.core.positions import FIRST, Beginning, Place, Position, Start, read_cursor, require_kept
from flowfabric.core.subscribing import (
    HOLD,
    SCAN,
    EventFilter,
    EventPage,
    OutboxState,
    Subscriber,
    may_hold,
    subscriber_not_found,
    why_lost,
)
from flowfabric.store.transaction import Transaction


async def outbox_state(tx: Transaction) -> OutboxState:
    """Where the present is, and what was trimmed."""
    return await tx.outbox.state()


async def begin(tx: Transaction, namespace: str, start: Start | str) -> Beginning:
    """The position of a cursor, of now or of the beginning, and the place that cursors after it belong to."""
    state = await tx.outbox.state()
    place = Place(state.store, namespace)
    if start == Start.NOW:
        return Beginning(place, state.present, state.trimmed)
    if start == Start.BEGINNING:
        return Beginning(place, FIRST, state.trimmed)
    return Beginning(place, require_kept(read_cursor(start, place), state.trimmed), state.trimmed)


async def read_page(tx: Transaction, wanted: EventFilter, after: Position) -> EventPage:
    """The wanted ones among the next events."""
    return await tx.outbox.read(wanted, after, SCAN)


async def take(
    tx: Transaction, namespace: str, name: str, holder: UUID, start: Start | str
) -> tuple[Place, Position | None]:
    """Where the subscriber of that name goes on; None while another process holds it. A new one begins at `start`."""
    place = Place((await tx.outbox.state()).store, namespace)
    subscriber = await tx.subscribers.lock(namespace, name)
    if subscriber is None:
        beginning = await begin(tx, namespace, start)
        await tx.subscribers.add(namespace, name, beginning.position, await tx.now())
        subscriber = await tx.subscribers.lock(namespace, name)
        assert subscriber is not None, "it is there now, whoever added it"
    now = await tx.now()
    if not may_hold(subscriber, holder, now):
        return place, None
    await tx.subscribers.hold(namespace, name, holder, now, now + HOLD)
    return place, subscriber.position


async def commit(tx: Transaction, namespace: str, name: str, holder: UUID, position: Position) -> None:
    """Everything up to the position is done; refused unless the holder still has the name."""
    until = await tx.now() + HOLD
    if not await tx.subscribers.commit(namespace, name, holder, position, until):
        raise why_lost(await tx.subscribers.lock(namespace, name), name)


async def release(tx: Transaction, namespace: str, name: str, holder: UUID) -> None:
    """Lets another process read on at once."""
    await tx.subscribers.release(namespace, name, holder)


async def forget(tx: Transaction, namespace: str, name: str) -> None:
    """Removes the subscriber: no events are kept for it any more."""
    if not await tx.subscribers.forget(namespace, name):
        raise subscriber_not_found(name)


async def list_subscribers(tx: Transaction, namespace: str) -> list[Subscriber]:
    """All subscribers of the namespace, by name."""
    found: list[Subscriber] = []
    while page := await tx.subscribers.page(namespace, found[-1].name if found else "", SCAN):
        found += page
    return found
