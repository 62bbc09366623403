"""`Subscription`, an async iterator over events. It survives outages, and stores its position if it has a name."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from dataclasses import replace
from types import TracebackType
from typing import Self

from flowfabric.core.errors import InvalidRequest, NotFound, Refused, Unavailable
from flowfabric.core.events.cursor import (
    CursorScope,
    Position,
    Start,
    SubscriptionStart,
    require_in_time,
    write_cursor,
)
from flowfabric.core.events.subscribers import HOLD_TTL, EventFilter, EventPage
from flowfabric.core.executions.records import Event
from flowfabric.engine.context import Context
from flowfabric.notify.waiters import Waiter, events_topic
from flowfabric.ops.events import subscribe
from flowfabric.ops.events.subscribe import CommitRequest, EventQuery, ResumeRequest, SubscriberHold, TakeRequest

_COMMIT_EVERY_S = 0.5
_RENEW_EVERY_S = HOLD_TTL.total_seconds() / 3
_STAND_BY_S = 1.0
# How often the store notes the position of a reader. After a failover, about as many events are delivered again.
_NOTE_EVERY_S = 2.0
INITIAL_PAUSE_S = 0.005
_HELD_BACK_PAUSE_S = 0.25
_MAX_BACKOFF_S = 5.0
# The codes of temporary errors: the server restarts, has no free connections, or is slow.
_TRANSIENT = {
    "connection_lost",
    "server_unreachable",
    "too_many_connections",
    "statement_timeout",
    "storage_busy",
    "retry_exhausted",
    "server_read_only",
}
_log = logging.getLogger("flowfabric.events")


class Subscription:
    """An async iterator over events in order: `async for event in subscription`.

    Use it with `async with`: entering determines the position where it starts, and leaving releases its name.

    If the subscription has a name, asking for the next event marks the previous event as processed. The position is
    stored every half second, when no events are left to read, and by `commit`. After a crash, events after the stored
    position are delivered again, so each event is delivered at least once. While another process reads under the same
    name, this subscription waits. It takes over the name when the other process has not asked for an event for 30
    seconds.

    With `follow`, a subscription retries with growing pauses while the store is unavailable, and continues where it
    was. If the store went back to an earlier state, it continues at the last position that the store knows, and some
    events are delivered again.
    """

    def __init__(
        self, context: Context, event_filter: EventFilter, start: Start | str, name: str | None, *, follow: bool
    ) -> None:
        self._context = context
        self._filter = event_filter
        self._start = start
        self._name = name
        self._follow = follow
        self._hold = SubscriberHold(name or "", context.new_lease_id())
        self._scope: CursorScope | None = None
        self._trimmed: Position | None = None
        # The positions of the last event that was read, returned to the caller, processed by the caller, and stored as
        # processed.
        self._read: Position | None = None
        self._returned: Position | None = None
        self._processed: Position | None = None
        self._stored: Position | None = None
        self._stored_at = 0.0
        self._noted_at = 0.0
        # Where to continue if the store went back to an earlier state.
        self._resume: ResumeRequest | None = None
        self._page: deque[tuple[Position, Event]] = deque()
        self._closed = False
        self._outages = 0

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        self._processed = self._returned
        if self._page:
            # If the caller is slow, the hold on the name must be renewed before the page is used up.
            try:
                await self._store_position_if_due(idle=False)
            except Unavailable as error:
                await self._wait_out(error)
        while not self._page:
            if self._closed or not await self._fill():
                raise StopAsyncIteration
        position, event = self._page.popleft()
        self._returned = position
        assert self._scope is not None, "a page is read after the start"
        return replace(event, cursor=write_cursor(self._scope, position))

    @property
    def cursor(self) -> str | None:
        """The cursor after the last returned event, or None before the start position is known."""
        return None if self._scope is None or self._returned is None else write_cursor(self._scope, self._returned)

    async def commit(self) -> None:
        """Mark the last returned event as processed, and store the position after it."""
        if self._name is None:
            raise InvalidRequest("invalid_request", "only a named subscription is stored; keep `event.cursor` yourself")
        self._processed = self._returned
        await self._store_position()

    async def close(self) -> None:
        """End the subscription, and let another process take the name immediately."""
        if self._closed:
            return
        self._closed = True
        self._page.clear()
        if self._name is not None and self._stored is not None:
            if self._processed != self._stored:
                await self._store_position()
            await self._context.call(subscribe.release_subscriber, self._hold)

    async def _begin(self) -> bool:
        """Find the start position, and return True. Return False while another process has the name."""
        if self._read is not None:
            return True
        if self._name is None:
            start = await self._find_start()
            self._scope, self._trimmed, self._resume = start.place, start.trimmed, None
            self._read = self._returned = start.position
            return True
        request = TakeRequest(self._hold, self._start, self._resume)
        scope, position = await self._context.call(subscribe.take_subscriber, request)
        if position is None:
            return False
        self._scope, self._resume = scope, None
        self._read = self._returned = self._processed = self._stored = position
        self._stored_at = time.monotonic()
        return True

    async def _find_start(self) -> SubscriptionStart:
        if self._resume is None:
            return await self._context.call(subscribe.start_position, self._start)
        return await self._context.call(subscribe.resume_position, self._resume)

    async def _fill(self) -> bool:
        """Read until a page has events, and return True. Without `follow`, return False if no events are left."""
        pause_s = INITIAL_PAUSE_S
        with self._context.wakeups.waiter([events_topic(self._filter.namespace)]) as waiter:
            while not self._page:
                waiter.clear()
                try:
                    if not await self._begin():
                        await asyncio.sleep(random.uniform(_STAND_BY_S / 2, _STAND_BY_S))
                        continue
                    before = self._read
                    page = await self._read_page()
                except Unavailable as error:
                    await self._wait_out(error)
                    continue
                self._outages = 0
                if page is None or self._read != before:
                    pause_s = INITIAL_PAUSE_S
                    continue
                if not self._follow:
                    return False
                pause_s = await self._pause(waiter, page, pause_s)
        return True

    async def _read_page(self) -> EventPage | None:
        """Read the next events. Return None if the store went back, so that the position must be found again."""
        assert self._read is not None and self._scope is not None, "the start position is known"
        after, scope = self._read, self._scope
        page = await self._context.call(subscribe.read_page, EventQuery(self._filter, after))
        if not page.is_current or (page.store, page.era) != (scope.store, scope.era):
            self._return_to_known_position(scope)
            return None
        if self._trimmed is not None:
            require_in_time(after, self._trimmed, page.trimmed)
            self._trimmed = page.trimmed
        self._page.extend(page.events)
        self._read = page.read_up_to
        if not page.events:
            # The caller has processed all earlier events, and none of the events in this read pass the filter.
            self._processed = self._returned = page.read_up_to
        await self._store_position_if_due(idle=page.read_up_to == after)
        if page.read_up_to != after and time.monotonic() - self._noted_at >= _NOTE_EVERY_S:
            await self._context.call(subscribe.note_known, ResumeRequest(scope, page.read_up_to))
            self._noted_at = time.monotonic()
        return page

    def _return_to_known_position(self, scope: CursorScope) -> None:
        """Drop the events that were read but not returned. The next read starts at a position that the store knows."""
        assert self._returned is not None, "the start position is known"
        _log.warning(
            "The store went back to an earlier state after a failover or a restore; "
            "events are read again from the last position that it knows"
        )
        self._resume = ResumeRequest(scope, self._returned)
        self._page.clear()
        self._read = self._stored = None

    async def _wait_out(self, error: Unavailable) -> None:
        """Pause, longer after each consecutive failure, or raise the error.

        Raise it if it is not transient, or if the subscription was opened without `follow`.
        """
        if not self._follow or error.code not in _TRANSIENT:
            raise error
        if not self._outages:
            _log.warning("Events cannot be read, retrying until the store is available: %s", error)
        self._outages += 1
        await asyncio.sleep(random.uniform(0.5, 1.0) * min(_MAX_BACKOFF_S, 0.05 * 2.0 ** min(self._outages, 10)))

    async def _pause(self, waiter: Waiter, page: EventPage, pause_s: float) -> float:
        """Wait up to `pause_s` for a notification, and return how long to wait the next time.

        While an open transaction holds events back, the pauses are short, because the end of that transaction sends no
        notification.
        """
        max_s = _HELD_BACK_PAUSE_S if page.held_back else self._context.wakeups.poll_interval_s
        if self._name is not None:
            max_s = min(max_s, _RENEW_EVERY_S)
        if self._context.wakeups.is_alive and not page.held_back:
            pause_s = max_s
        is_notified = await waiter.wait(min(pause_s, max_s))
        return INITIAL_PAUSE_S if is_notified else min(2 * pause_s, max_s)

    async def _store_position_if_due(self, *, idle: bool) -> None:
        if self._name is None:
            return
        age_s = time.monotonic() - self._stored_at
        has_moved = self._processed != self._stored
        if (has_moved and (idle or age_s >= _COMMIT_EVERY_S)) or age_s >= _RENEW_EVERY_S:
            await self._store_position()

    async def _store_position(self) -> None:
        position, scope = self._processed, self._scope
        if self._name is None or position is None or scope is None or self._read is None:
            return
        try:
            is_stored = await self._context.call(subscribe.commit_position, CommitRequest(self._hold, scope, position))
        except (Refused, NotFound):
            # Another process has taken the name, so drop the events that were not returned yet. Further calls raise the
            # same error.
            self._page.clear()
            raise
        if is_stored:
            self._stored, self._stored_at = position, time.monotonic()
        else:
            self._return_to_known_position(scope)
