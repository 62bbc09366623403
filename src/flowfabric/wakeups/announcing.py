"""Telling other processes: gathered, and never more often than every 10 ms; every 30 ms when very much is committed,
since those who could be woken then have work."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import datetime, timedelta

from flowfabric.store.news import News, Telling
from flowfabric.wakeups.due_times import DueTimes

_GAP_S = 0.01
_TURNS_OF_OTHERS = 3
_BUSY_GAP_S = 0.03
_BUSY = 50
_UNKNOWN_DUE_EVERY_S = 1.0
_LAST_FLUSH_S = 1.0
_log = logging.getLogger("flowfabric.wakeups")


class Announcer:
    """Announces what is given to it. The first goes at once; what comes meanwhile goes together."""

    def __init__(self, telling: Telling, horizon_s: float, *, enabled: bool) -> None:
        self._telling = telling
        self._enabled = enabled and telling.can_announce
        self._gathered = News()
        self._commits = 0
        self._task: asyncio.Task[None] | None = None
        self._due_times = DueTimes(horizon_s)
        self._unknown_due: asyncio.TimerHandle | None = None
        self._unknown_due_at: datetime | None = None
        self._told_unknown_at = -_UNKNOWN_DUE_EVERY_S
        self.announced = 0

    def tell(self, news: News) -> None:
        """Others hear of it soon, if there is a way and an event loop to do it in."""
        if not self._enabled or running_loop() is None:
            return
        self._gathered.merge(news)
        self._commits += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._announce(), name="flowfabric-announcer")

    def tell_due(self, due: datetime, in_: timedelta) -> None:
        """Something is due then, which is so far from now; others hear of it if they would look too late."""
        if self._due_times.is_news(in_.total_seconds(), time.monotonic()):
            self.tell(News(due=due))

    def tell_unknown_due(self, now: datetime) -> None:
        """Something may be due, and only the store knows when. Others look too, but at most once a second: most of what
        has no time given is not due soon, or at all."""
        loop = running_loop()
        if loop is None or not self._enabled or self._unknown_due is not None:
            return
        wait_s = max(0.0, self._told_unknown_at + _UNKNOWN_DUE_EVERY_S - time.monotonic())
        self._unknown_due_at, self._unknown_due = now, loop.call_later(wait_s, self._tell_unknown_due)

    async def close(self) -> None:
        """Sends what is still to be announced, if that is quick."""
        if self._unknown_due is not None:
            self._unknown_due.cancel()
            self._tell_unknown_due()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_LAST_FLUSH_S)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _tell_unknown_due(self) -> None:
        self._unknown_due, self._told_unknown_at = None, time.monotonic()
        # A time that has passed makes everybody look.
        self.tell(News(due=self._unknown_due_at))

    async def _announce(self) -> None:
        for _ in range(_TURNS_OF_OTHERS):
            # Whoever was rung in this process sends its statement first, and is not kept waiting by ours.
            await asyncio.sleep(0)
        while self._gathered:
            news, self._gathered = self._gathered, News()
            busy, self._commits = self._commits + len(news.ended) > _BUSY, 0
            try:
                await self._telling.announce(news)
                self.announced += 1
            except Exception as error:
                # Whatever is wrong with the store, those who do something about it will say so.
                _log.debug("wake-ups: an announcement was lost: %s", error)
            await asyncio.sleep(_BUSY_GAP_S if busy else _GAP_S)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop of this thread, if one runs."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
