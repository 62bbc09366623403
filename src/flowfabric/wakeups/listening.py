"""Hearing of other processes: a line that proves to be alive, and is made again when it breaks."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from flowfabric.store.news import Ear, News, Tell

_FIRST_BACKOFF_S = 0.05
_LONGEST_BACKOFF_S = 5.0
_log = logging.getLogger("flowfabric.wakeups")


@dataclass(frozen=True, slots=True)
class ListenerStatus:
    """How the hints of other processes arrive: `mode` is `off`, `polling` (there is no line), `starting`, `listening`
    or `broken`; `proved_s` says how long ago the line last proved to work, `connected_s` since when it does."""

    mode: str
    proved_s: float | None
    connected_s: float | None
    reconnects: int
    heard: int
    announced: int


class Listener:
    """Listens from the first start on until it is closed."""

    def __init__(self, ear: Ear | None, tell: Tell, learn_time: Callable[[datetime], None]) -> None:
        self._ear = ear
        self._tell = tell
        self._learn_time = learn_time
        self._task: asyncio.Task[None] | None = None
        self._proved_at: float | None = None
        self._since: float | None = None
        self._connects = 0
        self._heard = 0

    @property
    def is_alive(self) -> bool:
        """True while news of other processes arrive."""
        return self._since is not None

    def start(self) -> None:
        """Begins to listen, if there is a line and it has not begun yet."""
        if self._ear is not None and self._task is None:
            self._task = asyncio.create_task(self._listen(self._ear), name="flowfabric-listener")

    async def close(self) -> None:
        """Ends the line."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def status(self, mode: str | None, announced: int) -> ListenerStatus:
        """How the line is, unless there is none by another reason."""
        now = time.monotonic()
        found = "listening" if self._since is not None else "starting" if self._proved_at is None else "broken"
        return ListenerStatus(
            mode or ("polling" if self._ear is None else found),
            None if self._proved_at is None else now - self._proved_at,
            None if self._since is None else now - self._since,
            max(0, self._connects - 1), self._heard, announced,
        )  # fmt: skip

    async def _listen(self, ear: Ear) -> None:
        failures = 0
        while True:
            try:
                await ear.listen(self._hear, self._prove)
            except Exception as error:
                failures = 0 if self.is_alive else failures + 1
                _log.warning("wake-ups: the listener lost its line and tries again: %s", error)
            self._since = None
            await asyncio.sleep(random.uniform(0, min(_LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * 2.0**failures)))

    def _hear(self, news: News) -> None:
        self._heard += 1
        self._tell(news)

    def _prove(self, store_time: datetime | None) -> None:
        if store_time is not None:
            self._learn_time(store_time)
        self._proved_at = time.monotonic()
        if self._since is None:
            self._since = self._proved_at
            self._connects += 1
            # Whatever was told while nobody listened is looked for now.
            self._tell(News(anything=True))
