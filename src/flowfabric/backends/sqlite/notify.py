"""Notifications: a function call for commits of this process, and a regular check for commits of other processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

from flowfabric.backends.sqlite.writer import Writer
from flowfabric.store.commit_hints import CommitHints, HintHandler


class SqliteNotifier:
    """Reports the commits of this process with their hints, and the fact that another process has committed."""

    can_announce = False

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def on_commit(self, handler: HintHandler) -> None:
        self._writer.on_commit(handler)

    async def announce(self, hints: CommitHints) -> None:
        return None

    def source(self) -> SqliteNotificationSource:
        return SqliteNotificationSource(self._writer)


class SqliteNotificationSource:
    """A source that the writer thread feeds. When idle, it checks every 20 ms for commits of other connections."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def listen(self, handler: HintHandler, on_alive: Callable[[datetime | None], None]) -> None:
        loop = asyncio.get_running_loop()

        def on_commit(hints: CommitHints) -> None:
            try:
                loop.call_soon_threadsafe(handler, hints)
            except RuntimeError:
                return  # The loop is closed, so no listener waits.

        self._writer.on_foreign_commit(on_commit)
        try:
            on_alive(None)
            await asyncio.Event().wait()
        finally:
            self._writer.on_foreign_commit(None)
