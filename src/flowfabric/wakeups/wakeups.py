"""Everything that wakes: news of this process at once, those of others by a listener, and to others by announcements.

    commit of this process ──► bells of this process
                           └─► gathered ──► announced (one NOTIFY for all that came within 10 ms)
    listener ◄── other processes' announcements ──► bells of this process

While the listener has proved to be alive, whoever waits looks rarely by itself; otherwise as often as if there were no
wake-ups at all.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta

from flowfabric.store.news import News, Telling
from flowfabric.wakeups.announcing import Announcer, running_loop
from flowfabric.wakeups.bells import Bell, Bells, Want
from flowfabric.wakeups.listening import Listener, ListenerStatus

LOOK_S = 1.0
LOOK_ALIVE_S = 10.0


class Wakeups:
    """The bells of one engine, its announcements, and its listener, which starts when somebody first waits."""

    def __init__(self, telling: Telling, *, enabled: bool = True, clock: Callable[[], datetime] | None = None) -> None:
        self.bells = Bells()
        self.patrols = 0
        self.shortest_lease = timedelta.max
        self._enabled = enabled
        self._announcer = Announcer(telling, LOOK_ALIVE_S, enabled=enabled)
        self._listener = Listener(telling.ear() if enabled else None, self._heard, self.learn_time)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tell_due: Callable[[datetime | None], None] | None = None
        self._ahead = timedelta(0)
        self._clock = clock
        telling.on_commit(self._on_commit)

    def bell(self, wants: Collection[Want], capabilities: Collection[str] = ()) -> Bell:
        """A bell for these wants; enter it."""
        self._loop = asyncio.get_running_loop()
        self._listener.start()
        return Bell(self.bells, wants, capabilities)

    @property
    def alive(self) -> bool:
        """True while news of other processes arrive, so that looking rarely is enough."""
        return self._listener.is_alive

    @property
    def look_s(self) -> float:
        """How long to wait at most for a hint before looking anyhow, with jitter."""
        return random.uniform(0.8, 1.0) * (LOOK_ALIVE_S if self.alive else LOOK_S)

    def status(self) -> ListenerStatus:
        """How the listener is."""
        return self._listener.status(None if self._enabled else "off", self._announcer.announced)

    def on_due(self, tell: Callable[[datetime | None], None]) -> None:
        """Calls back with due times, None for one at an unknown time."""
        self._tell_due = tell

    def due_at(self, due: datetime | None) -> None:
        """Something is due then; None if only the store knows when."""
        if self._tell_due is not None:
            self._tell_due(due)
        now = self.store_now()
        if due is None:
            self._announcer.tell_unknown_due(now)
        else:
            self._announcer.tell_due(due, due - now)

    def expect_leases(self, term: timedelta) -> None:
        """Leases of such a term are given here, so others may give such too: a process that dies before it told of one
        is noticed within that time."""
        if term < self.shortest_lease:
            self.shortest_lease = term
            if self._tell_due is not None:
                # Whoever looks after them sleeps for as long as was right until now.
                self._tell_due(None)

    def learn_time(self, store_time: datetime) -> None:
        """The store's clock says so now; due times are compared with it."""
        self._ahead = store_time - datetime.now(UTC)

    def store_now(self) -> datetime:
        """About what the store's clock says, exactly if it is a test's."""
        return self._clock() if self._clock else datetime.now(UTC) + self._ahead

    async def close(self) -> None:
        """Stops listening, and sends what is still to be announced if that is quick."""
        await self._listener.close()
        await self._announcer.close()

    def _on_commit(self, news: News) -> None:
        if running_loop() is not None:
            self._heard(news)
            self._announcer.tell(news)
        elif self._loop is not None and self.bells:
            # A writer thread: whoever waits does so in the loop.
            _call_in(self._loop, self._heard, news)

    def _heard(self, news: News) -> None:
        self.bells.ring(news)
        if self._tell_due is not None and (news.due is not None or news.anything):
            self._tell_due(news.due)


def _call_in(loop: asyncio.AbstractEventLoop, call: Callable[[News], None], news: News) -> None:
    try:
        loop.call_soon_threadsafe(call, news)
    except RuntimeError:
        return  # The loop is closed: nobody waits any more.
