"""A disk on which commits are slow.

On SQLite, the process sleeps before the `COMMIT` of every writer, which holds the file's write lock meanwhile, as a
slow fsync would. PostgreSQL gets no slow disk here. Its commits wait for a synchronous standby that does not exist,
at the same point of the commit and with the same locks held, until the standby is no longer required.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import asyncpg

from flowfabric.backends.sqlite.lending import WriterConnection


class SlowDisk:
    """Counts slow commits, or stalls of all commits."""

    def __init__(self) -> None:
        self.count = 0
        self._slowed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def note(self) -> None:
        """Count one, in any thread."""
        self.count += 1
        self._loop.call_soon_threadsafe(self._slowed.set)

    async def wait_for(self, count: int) -> None:
        """Wait until this many were counted."""
        while self.count < count:
            self._slowed.clear()
            await self._slowed.wait()


@contextmanager
def slow_sqlite_commits(delay_s: float) -> Iterator[SlowDisk]:
    """Delay every commit of every SQLite writer in this process inside the block."""
    disk = SlowDisk()
    execute = WriterConnection.execute

    def slow_execute(self: WriterConnection, sql: str, *arguments: Any) -> Any:
        if sql == "COMMIT":
            disk.note()
            time.sleep(delay_s)
        return execute(self, sql, *arguments)

    WriterConnection.execute = slow_execute  # type: ignore[method-assign,assignment]
    try:
        yield disk
    finally:
        del WriterConnection.execute


@asynccontextmanager
async def slow_postgres_commits(dsn: str, delay_s: float, pause_s: float) -> AsyncIterator[SlowDisk]:
    """Stall all commits of the server for `delay_s`, again and again, inside the block. The user is a superuser."""
    disk = SlowDisk()
    connection = await asyncpg.connect(dsn)
    stalling = asyncio.create_task(_stall(connection, disk, delay_s, pause_s))
    try:
        yield disk
    finally:
        stalling.cancel()
        await asyncio.gather(stalling, return_exceptions=True)
        await _require_standby(connection, "")
        await connection.close()


async def _stall(connection: asyncpg.Connection[Any], disk: SlowDisk, delay_s: float, pause_s: float) -> None:
    while True:
        await asyncio.shield(_require_standby(connection, "nobody"))
        await asyncio.sleep(delay_s)
        await asyncio.shield(_require_standby(connection, ""))
        disk.note()
        await asyncio.sleep(pause_s)


async def _require_standby(connection: asyncpg.Connection[Any], name: str) -> None:
    await connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
    await connection.execute("SELECT pg_reload_conf()")
