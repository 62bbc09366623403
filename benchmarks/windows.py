"""The windows of a long load: rate, size, CPU per job, dead rows, and pages per claim."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from benchmarks.counting import ClaimCounter, ClaimPages, NotCountable
from benchmarks.cpu import server_cpu_s
from benchmarks.tasks import Tasks

_DEAD_ROWS = """
    SELECT COALESCE(SUM(n_dead_tup), 0)::BIGINT
    FROM pg_stat_user_tables
    WHERE schemaname = 'flowfabric'
        AND relname = 'execution'
"""

Window = dict[str, float | None]


class WindowMeter:
    """Measures consecutive windows. SQLite has no server to count dead rows and pages, so those figures are missing."""

    def __init__(
        self, tasks: Tasks, postmaster: int | None, connection: asyncpg.Connection | None, claims: ClaimCounter | None
    ) -> None:
        self._tasks = tasks
        self._postmaster = postmaster
        self._connection = connection
        self._claims = claims
        self._before: tuple[float, float, float | None, ClaimPages | None] | None = None

    async def start(self) -> None:
        """Begin the first window."""
        self._before = await self._read()

    async def window(self, jobs: int) -> Window:
        """End a window in which this number of jobs was done, and begin the next one."""
        assert self._before is not None, "the first window has begun"
        wall_s, client_s, server_s, pages = self._before
        self._before = now = await self._read()
        server_us = None if now[2] is None or server_s is None else (now[2] - server_s) / jobs * 1e6
        return {
            "rates": jobs / (now[0] - wall_s),
            "sizes": float(await self._tasks.size()),
            "client_us": (now[1] - client_s) / jobs * 1e6,
            "server_us": server_us,
            "dead_rows": None if self._connection is None else float(await self._connection.fetchval(_DEAD_ROWS)),
            "claim_pages": None if now[3] is None or pages is None else now[3].per_row_since(pages),
        }

    async def _read(self) -> tuple[float, float, float | None, ClaimPages | None]:
        server_s = None if self._postmaster is None else server_cpu_s(self._postmaster)
        pages = None if self._claims is None else await self._claims.read()
        return time.perf_counter(), time.process_time(), server_s, pages


@asynccontextmanager
async def window_meter(tasks: Tasks, options: Mapping[str, Any]) -> AsyncIterator[WindowMeter]:
    """Yield a meter whose first window begins now."""
    if not tasks.app.store.startswith("postgres"):
        meter = WindowMeter(tasks, None, None, None)
        await meter.start()
        yield meter
        return
    connection = await asyncpg.connect(tasks.app.store)
    try:
        try:
            claims = await ClaimCounter.on(connection)
        except NotCountable:
            claims = None
        meter = WindowMeter(tasks, options.get("postmaster"), connection, claims)
        await meter.start()
        yield meter
    finally:
        await connection.close()
