"""How wake-ups travel: within the process by a call; other processes see that the file has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

from flowfabric.backends.sqlite.writer import Writer
from flowfabric.store.news import News, Tell


class SqliteTelling:
    """Tells of commits of this process, and that others have committed."""

    can_announce = False

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def on_commit(self, tell: Tell) -> None:
        self._writer.on_commit(tell)

    async def announce(self, news: News) -> None:
        return None

    def ear(self) -> SqliteEar:
        return SqliteEar(self._writer)


class SqliteEar:
    """The writer thread looks every 20 ms whether another connection has committed, when it has nothing else to do."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def listen(self, tell: Tell, alive: Callable[[datetime | None], None]) -> None:
        loop = asyncio.get_running_loop()

        def heard(news: News) -> None:
            try:
                loop.call_soon_threadsafe(tell, news)
            except RuntimeError:
                return  # The loop is closed: nobody waits any more.

        self._writer.watch(heard)
        try:
            alive(None)
            await asyncio.Event().wait()
        finally:
            self._writer.watch(None)
