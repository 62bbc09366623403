"""Everything that wakes: news of this process at once, those of others by a listener, and to others by announcements.

    commit of this process ──► bells of this process
                           └─► gathered ──► announced (one NOTIFY for all that came within 10 ms)
    listener ◄── other processes' announcements ──► bells of this process

While the listener has proved to be alive, whoever waits looks rarely by itself; otherwise as often as if there were no
wake-ups at all.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from flowfabric.core.errors import FlowFabricError
from flowfabric.store.news import Ear, News, Telling
from flowfabric.wakeups.bells import Bell, Bells, Want
from flowfabric.wakeups.due_times import DueTimes

LOOK_S = 1.0
LOOK_ALIVE_S = 10.0
_GAP_S = 0.01
_UNKNOWN_DUE_EVERY_S = 1.0
_LAST_FLUSH_S = 1.0
_LONGEST_BACKOFF_S = 5.0
_log = logging.getLogger("flowfabric.wakeups")


@dataclass(frozen=True, slots=True)
class ListenerStatus:
    """How the hints of other processes arrive: `mode` is `off`, `polling` (there is no line), `starting`, `listening`
    or `broken`; `proved_s` says how long ago the line last proved to work."""

    mode: str
    proved_s: float | None
    connected_s: float | None
    reconnects: int
    heard: int
    announced: int


class Wakeups:
    """The bells of one engine, its announcements, and its listener, which starts when somebody first waits."""

    def __init__(self, store: Telling, *, enabled: bool = True) -> None:
        self._store = store
        self._ear = store.ear() if enabled else None
        self._enabled = enabled
        self._bells = Bells()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gathered = News()
        self._announcing: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._due_times = DueTimes(LOOK_ALIVE_S)
        self._tell_due: Callable[[datetime | None], None] | None = None
        self._ahead = timedelta(0)
        self._unknown_due: asyncio.TimerHandle | None = None
        self._told_unknown_at = -_UNKNOWN_DUE_EVERY_S
        self._line = _Line()
        self.patrols = 0
        store.on_commit(self._on_commit)

    def bell(self, wants: Collection[Want], capabilities: Collection[str] = ()) -> Bell:
        """A bell for these wants; enter it."""
        self._loop = asyncio.get_running_loop()
        if self._ear is not None and self._listening is None:
            self._listening = asyncio.create_task(self._listen(self._ear), name="flowfabric-listener")
        return Bell(self._bells, wants, capabilities)

    @property
    def bells(self) -> Bells:
        """The bells that hang at present."""
        return self._bells

    @property
    def alive(self) -> bool:
        """True while news of other processes arrive, so that looking rarely is enough."""
        return self._line.is_alive

    @property
    def look_s(self) -> float:
        """How long to wait at most for a hint before looking anyhow, with jitter."""
        return random.uniform(0.8, 1.0) * (LOOK_ALIVE_S if self.alive else LOOK_S)

    def status(self) -> ListenerStatus:
        """How the listener is."""
        return self._line.status("off" if not self._enabled else "polling" if self._ear is None else None)

    def on_due(self, tell: Callable[[datetime | None], None]) -> None:
        """Calls back with due times, None for one at an unknown time."""
        self._tell_due = tell

    def due_at(self, due: datetime | None) -> None:
        """Something is due then; None if only the store knows when."""
        if self._tell_due is not None:
            self._tell_due(due)
        if due is None:
            self._tell_others_soon()
        elif self._due_times.is_news((due - self.store_now()).total_seconds(), time.monotonic()):
            self._gather(News(due=due))

    def learn_time(self, store_time: datetime) -> None:
        """The store's clock says so now; due times are compared with it."""
        self._ahead = store_time - datetime.now(UTC)

    def store_now(self) -> datetime:
        """About what the store's clock says."""
        return datetime.now(UTC) + self._ahead

    def _tell_others_soon(self) -> None:
        """Others look too, but at most once a second: most of what has no time given is not due soon, or at all."""
        loop = _running_loop()
        if loop is None or self._unknown_due is not None:
            return
        wait_s = max(0.0, self._told_unknown_at + _UNKNOWN_DUE_EVERY_S - time.monotonic())
        self._unknown_due = loop.call_later(wait_s, self._tell_unknown)

    def _tell_unknown(self) -> None:
        self._unknown_due, self._told_unknown_at = None, time.monotonic()
        self._gather(News(due=self.store_now()))

    async def close(self) -> None:
        """Stops listening, and sends what is still to be announced if that is quick."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        if self._unknown_due is not None:
            self._unknown_due.cancel()
            self._tell_unknown()
        if self._announcing is not None:
            await asyncio.wait([self._announcing], timeout=_LAST_FLUSH_S)
            self._announcing.cancel()
            await asyncio.gather(self._announcing, return_exceptions=True)

    def _on_commit(self, news: News) -> None:
        if _running_loop() is None:
            # A writer thread: whoever waits does so in the loop.
            if self._loop is not None and self._bells:
                _call_in(self._loop, self._bells.ring, news)
            return
        self._bells.ring(news)
        self._gather(news)

    def _gather(self, news: News) -> None:
        if not (self._enabled and self._store.can_announce) or _running_loop() is None:
            return
        self._gathered.merge(news)
        if self._announcing is None or self._announcing.done():
            self._announcing = asyncio.create_task(self._announce(), name="flowfabric-announcer")

    async def _announce(self) -> None:
        """The first goes at once; what comes meanwhile goes together."""
        while self._gathered:
            news, self._gathered = self._gathered, News()
            try:
                await self._store.announce(news)
                self._line.announced += 1
            except FlowFabricError as error:
                _log.debug("wake-ups: an announcement was lost: %s", error)
            await asyncio.sleep(_GAP_S)

    def _heard(self, news: News) -> None:
        self._line.heard += 1
        self._bells.ring(news)
        if self._tell_due is not None and (news.due is not None or news.anything):
            self._tell_due(news.due)

    def _proved(self, store_time: datetime | None) -> None:
        if store_time is not None:
            self.learn_time(store_time)
        if self._line.prove():
            # Whatever was told while nobody listened is looked for now.
            self._heard(News(anything=True))

    async def _listen(self, ear: Ear) -> None:
        failures = 0
        while True:
            try:
                await ear.listen(self._heard, self._proved)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                failures = 0 if self._line.is_alive else failures + 1
                self._line.lose()
                _log.warning("wake-ups: the listener lost its connection and tries again: %s", error)
            await asyncio.sleep(random.uniform(0, min(_LONGEST_BACKOFF_S, 0.1 * 2.0**failures)))


class _Line:
    """What is known about the line to other processes."""

    def __init__(self) -> None:
        self._proved_at: float | None = None
        self._since: float | None = None
        self.reconnects = -1
        self.heard = 0
        self.announced = 0

    @property
    def is_alive(self) -> bool:
        return self._since is not None

    def prove(self) -> bool:
        """True if the line was not known to be alive before."""
        self._proved_at = time.monotonic()
        if self._since is not None:
            return False
        self._since = self._proved_at
        self.reconnects += 1
        return True

    def lose(self) -> None:
        self._since = None

    def status(self, mode: str | None) -> ListenerStatus:
        now = time.monotonic()
        found = "listening" if self._since is not None else "starting" if self._proved_at is None else "broken"
        return ListenerStatus(
            mode or found, None if self._proved_at is None else now - self._proved_at,
            None if self._since is None else now - self._since, max(0, self.reconnects), self.heard, self.announced,
        )  # fmt: skip


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _call_in(loop: asyncio.AbstractEventLoop, call: Callable[[News], None], news: News) -> None:
    try:
        loop.call_soon_threadsafe(call, news)
    except RuntimeError:
        return  # The loop is closed: nobody waits any more.
