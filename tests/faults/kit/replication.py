"""A primary with an asynchronous standby. A failover promotes the standby, which lacks the last transactions.

    clients ──> proxy ──> primary ──(WAL)──> standby
                  │                             ▲
                  └── after a failover ─────────┘

`lag` stops the WAL, so everything that commits afterwards is lost by the failover. Every failover uses up a server, and
`add_standby` copies the new primary. There are two proxies, so that some clients find the new primary later.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from typing import Any

import psycopg

from tests.faults.kit.proxy import Proxy, proxies, target_of
from tests.postgres_server import PostgresServer, postgres_server, standby_server

CATCH_UP_S = 30.0
POLL_S = 0.01
# A small server starts faster and is copied faster.
SETTINGS = {"shared_buffers": "8MB", "wal_receiver_status_interval": "1s", "max_wal_size": "64MB"}


class Cluster:
    """The servers, and the two proxies: `dsn` finds the new primary first, and `late_dsn` after `repoint`."""

    def __init__(self, pairs: list[tuple[Proxy, str]], primary: PostgresServer, keep_primary: ExitStack) -> None:
        (self._proxy, self.dsn), (self._late_proxy, self.late_dsn) = pairs
        self._primary = primary
        self._keep_primary = keep_primary
        self._standby: PostgresServer | None = None
        self._keep_standby = ExitStack()

    async def add_standby(self) -> None:
        """Copy the primary, and wait until the copy receives and has replayed everything."""
        self._keep_standby = ExitStack()
        self._standby = await asyncio.to_thread(_enter, self._keep_standby, standby_server(self._primary, **SETTINGS))
        await self.catch_up()

    async def catch_up(self) -> None:
        """Wait until the standby has replayed all transactions of the primary."""
        await asyncio.to_thread(self._catch_up)

    async def lag(self) -> None:
        """Let the standby receive nothing from now on."""
        await asyncio.to_thread(self._stop_receiving)

    async def fail_over(self) -> None:
        """Kill the primary, promote the standby, and send the first clients there."""
        await asyncio.to_thread(self._fail_over)

    def repoint(self) -> None:
        """Send the other clients to the new primary."""
        self._late_proxy.target = self._proxy.target
        self._late_proxy.cut()

    def close(self) -> None:
        """Stop all servers."""
        self._keep_standby.close()
        self._keep_primary.close()

    def _catch_up(self) -> None:
        assert self._standby is not None, "a standby was added"
        with _session(self._primary) as primary, _session(self._standby) as standby:
            target = _value(primary, "SELECT pg_current_wal_flush_lsn()::TEXT")
            _wait(standby, f"SELECT pg_last_wal_replay_lsn() >= '{target}'")

    def _stop_receiving(self) -> None:
        assert self._standby is not None, "a standby was added"
        with _session(self._standby) as standby:
            standby.execute("ALTER SYSTEM SET primary_conninfo = ''")
            standby.execute("SELECT pg_reload_conf()")
            _wait(standby, "SELECT NOT EXISTS (SELECT 1 FROM pg_stat_wal_receiver)")

    def _fail_over(self) -> None:
        assert self._standby is not None, "a standby was added"
        self._primary.stop("kill")
        with _session(self._standby) as standby:
            standby.execute("SELECT pg_promote(TRUE, 60)")
        self._proxy.target = target_of(self._standby.dsn)
        self._proxy.cut()
        self._keep_primary.close()
        self._primary, self._keep_primary = self._standby, self._keep_standby
        self._standby, self._keep_standby = None, ExitStack()


@asynccontextmanager
async def replicated() -> AsyncIterator[Cluster]:
    """Yield a primary behind a proxy. It has no standby yet."""
    keep_primary = ExitStack()
    primary = await asyncio.to_thread(_enter, keep_primary, postgres_server(**SETTINGS))
    with proxies(primary.dsn, 2) as pairs:
        cluster = Cluster(pairs, primary, keep_primary)
        try:
            yield cluster
        finally:
            await asyncio.to_thread(cluster.close)


def _enter(stack: ExitStack, manager: AbstractContextManager[PostgresServer]) -> PostgresServer:
    return stack.enter_context(manager)


def _session(server: PostgresServer) -> psycopg.Connection[Any]:
    return psycopg.connect(server.dsn, autocommit=True)


def _value(connection: psycopg.Connection[Any], sql: str) -> Any:
    row = connection.execute(sql.encode()).fetchone()
    assert row is not None, "the statement returns one row"
    return row[0]


def _wait(connection: psycopg.Connection[Any], sql: str) -> None:
    deadline = time.monotonic() + CATCH_UP_S
    while not _value(connection, sql):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not true after {CATCH_UP_S:g} s: {sql}")
        time.sleep(POLL_S)
