"""One reader of events: an async iterator that resumes where it was, and under a name remembers where that is."""

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
from flowfabric.core.positions import Place, Position, Start, require_in_time, write_cursor
from flowfabric.core.records import Event
from flowfabric.core.subscribing import HOLD, EventFilter, EventPage
from flowfabric.engine.context import Context
from flowfabric.ops import subscribing
from flowfabric.wakeups.bells import Bell, events_of

_COMMIT_EVERY_S = 0.5
_RENEW_EVERY_S = HOLD.total_seconds() / 3
_STAND_BY_S = 1.0
_FIRST_PAUSE_S = 0.005
_HELD_BACK_PAUSE_S = 0.25
_MOST_BACKOFF_S = 5.0
# What goes by: the server restarts, is out of connections, or is slow.
_PASSING = {"connection_lost", "too_many_connections", "statement_timeout", "storage_busy", "retry_exhausted"}
_log = logging.getLogger("flowfabric.events")


class Subscription:
    """Events in order: `async for event in subscription`. Enter it with `async with` to fix at once where it begins,
    and to have a name given back at the end.

    Under a name, asking for the next event says that the one before is done; that is stored every half a second and
    when there is nothing to do, or by `commit`. What was not yet stored comes again: at least once. While another
    process reads under the same name, this one stands by; it takes over from one that asks for nothing for 30 seconds.

    One that follows asks again, ever more rarely, while the store does not answer, and goes on where it was.
    """

    def __init__(
        self, context: Context, wanted: EventFilter, start: Start | str, name: str | None, *, follow: bool
    ) -> None:
        self._context = context
        self._wanted = wanted
        self._start = start
        self._name = name
        self._follow = follow
        self._holder = context.new_lease_id()
        self._place: Place | None = None
        self._trimmed: Position | None = None
        self._read: Position | None = None
        self._at: Position | None = None
        self._done: Position | None = None
        self._stored: Position | None = None
        self._stored_at = 0.0
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
        self._done = self._at
        if self._page:
            # Whoever takes long over a page keeps its name while it does.
            try:
                await self._store_if_due(idle=False)
            except Unavailable as error:
                await self._outlast(error)
        while not self._page:
            if self._closed or not await self._fill():
                raise StopAsyncIteration
        position, event = self._page.popleft()
        self._at = position
        assert self._place is not None, "a page comes after the beginning"
        return replace(event, cursor=write_cursor(self._place, position))

    @property
    def cursor(self) -> str | None:
        """By which a subscription goes on after everything that this one has given; None before it has begun."""
        return None if self._place is None or self._at is None else write_cursor(self._place, self._at)

    async def commit(self) -> None:
        """The event that was given last is done as well; stored when this returns."""
        if self._name is None:
            raise InvalidRequest("invalid_request", "only a named subscription is stored; keep `event.cursor` yourself")
        self._done = self._at
        await self._store()

    async def close(self) -> None:
        """Ends the subscription and lets another process have the name at once."""
        if self._closed:
            return
        self._closed = True
        self._page.clear()
        if self._name is not None and self._stored is not None:
            if self._done != self._stored:
                await self._store()
            namespace, name = self._wanted.namespace, self._name
            await self._context.store.run(lambda tx: subscribing.release(tx, namespace, name, self._holder))

    async def _begin(self) -> bool:
        """True once it is known where to read on; False while another process has the name."""
        if self._read is not None:
            return True
        namespace, name = self._wanted.namespace, self._name
        store = self._context.store
        if name is None:
            beginning = await store.read(lambda tx: subscribing.begin(tx, namespace, self._start))
            self._place, self._trimmed = beginning.place, beginning.trimmed
            self._read = self._at = beginning.position
            return True
        self._place, position = await store.run(
            lambda tx: subscribing.take(tx, namespace, name, self._holder, self._start)
        )
        self._read = self._at = self._done = self._stored = position
        self._stored_at = time.monotonic()
        return position is not None

    async def _fill(self) -> bool:
        """Reads until there is something wanted; False when everything was read and it should not follow."""
        pause_s = _FIRST_PAUSE_S
        with self._context.wakeups.bell([events_of(self._wanted.namespace)]) as bell:
            while not self._page:
                bell.clear()
                try:
                    if not await self._begin():
                        await asyncio.sleep(random.uniform(_STAND_BY_S / 2, _STAND_BY_S))
                        continue
                    before = self._read
                    page = await self._read_on()
                except Unavailable as error:
                    await self._outlast(error)
                    continue
                self._outages = 0
                if self._read != before:
                    pause_s = _FIRST_PAUSE_S
                    continue
                if not self._follow:
                    return False
                pause_s = await self._pause(bell, page, pause_s)
        return True

    async def _read_on(self) -> EventPage:
        assert self._read is not None, "it has begun"
        after = self._read
        page = await self._context.store.read_single(lambda tx: subscribing.read_page(tx, self._wanted, after))
        if self._trimmed is not None:
            require_in_time(after, self._trimmed, page.trimmed)
            self._trimmed = page.trimmed
        self._page.extend(page.events)
        self._read = page.read_up_to
        if not page.events:
            # Everything before was done, and what was looked through is not wanted.
            self._done = self._at = page.read_up_to
        await self._store_if_due(idle=page.read_up_to == after)
        return page

    async def _outlast(self, error: Unavailable) -> None:
        """Waits a little, and ever longer, if the store will be back and this is to follow; raises otherwise."""
        if not self._follow or error.code not in _PASSING:
            raise error
        if not self._outages:
            _log.warning("events: the store does not answer and is asked again until it does: %s", error)
        self._outages += 1
        await asyncio.sleep(random.uniform(0.5, 1.0) * min(_MOST_BACKOFF_S, 0.05 * 2.0 ** min(self._outages, 10)))

    async def _pause(self, bell: Bell, page: EventPage, pause_s: float) -> float:
        """Waits for news; answers how long to wait the next time. What a transaction that is still open holds back is
        not announced when that ends, so it is looked for."""
        longest_s = _HELD_BACK_PAUSE_S if page.held_back else self._context.wakeups.look_s
        if self._name is not None:
            longest_s = min(longest_s, _RENEW_EVERY_S)
        if self._context.wakeups.alive and not page.held_back:
            pause_s = longest_s
        rung = await bell.wait(min(pause_s, longest_s))
        return _FIRST_PAUSE_S if rung else min(2 * pause_s, longest_s)

    async def _store_if_due(self, *, idle: bool) -> None:
        if self._name is None:
            return
        age_s = time.monotonic() - self._stored_at
        moved = self._done != self._stored
        if (moved and (idle or age_s >= _COMMIT_EVERY_S)) or age_s >= _RENEW_EVERY_S:
            await self._store()

    async def _store(self) -> None:
        namespace, name, done = self._wanted.namespace, self._name, self._done
        if name is None or done is None:
            return
        try:
            await self._context.store.run(lambda tx: subscribing.commit(tx, namespace, name, self._holder, done))
        except (Refused, NotFound):
            # What was read under the name is somebody else's now; asked again, it says so again.
            self._page.clear()
            raise
        self._stored, self._stored_at = done, time.monotonic()
