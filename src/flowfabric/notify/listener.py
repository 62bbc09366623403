"""The listener for notifications of other processes. The listener reconnects when its connection breaks."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from flowfabric.store.commit_hints import CommitHints, HintHandler
from flowfabric.store.ports import NotificationSource

INITIAL_BACKOFF_S = 0.05
_MAX_BACKOFF_S = 5.0
_log = logging.getLogger("flowfabric.notify")


@dataclass(frozen=True, slots=True)
class ListenerStatus:
    """The status of the connection on which notifications of other processes arrive.

    `mode` is `off`, `polling` (there is no source of notifications), `starting`, `listening` or `broken`.
    `last_proved_s` is the age of the last proof that the connection works; `connected_s` is the age of the connection.
    """

    mode: str
    last_proved_s: float | None
    connected_s: float | None
    reconnects: int
    received: int
    sent: int


class Listener:
    """Listens from its start until it is closed."""

    def __init__(
        self, source: NotificationSource | None, on_hints: HintHandler, learn_time: Callable[[datetime], None]
    ) -> None:
        self._source = source
        self._on_hints = on_hints
        self._learn_time = learn_time
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._proved_at: float | None = None
        self._connected_at: float | None = None
        self._connects = 0
        self._received = 0

    @property
    def is_alive(self) -> bool:
        """True while notifications of other processes arrive."""
        return self._connected_at is not None

    def start(self) -> None:
        """Start listening, unless the listener has started, is closed, or has no source of notifications."""
        if self._source is not None and self._task is None and not self._is_closed:
            self._task = asyncio.create_task(self._listen(self._source), name="flowfabric-listener")

    async def close(self) -> None:
        """Stop listening for good."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def status(self, mode: str | None, sent: int) -> ListenerStatus:
        """Return the status; `mode` overrides the mode of the connection."""
        now = time.monotonic()
        state = "listening" if self.is_alive else "starting" if self._proved_at is None else "broken"
        return ListenerStatus(
            mode or ("polling" if self._source is None else state),
            None if self._proved_at is None else now - self._proved_at,
            None if self._connected_at is None else now - self._connected_at,
            max(0, self._connects - 1),
            self._received,
            sent,
        )

    async def _listen(self, source: NotificationSource) -> None:
        failures = 0
        while True:
            try:
                await source.listen(self._receive, self._prove)
            except Exception as error:
                failures = 0 if self.is_alive else failures + 1
                _log.warning("Listener lost its connection, reconnecting: %s", error)
            self._connected_at = None
            await asyncio.sleep(random.uniform(0, min(_MAX_BACKOFF_S, INITIAL_BACKOFF_S * 2.0**failures)))

    def _receive(self, hints: CommitHints) -> None:
        self._received += 1
        self._on_hints(hints)

    def _prove(self, store_time: datetime | None) -> None:
        if store_time is not None:
            self._learn_time(store_time)
        self._proved_at = time.monotonic()
        if self._connected_at is None:
            self._connected_at = self._proved_at
            self._connects += 1
            # Notifications that were sent before this connection are lost, so every waiter must read the store once.
            self._on_hints(CommitHints(anything=True))
