"""The clock of a host or of a PostgreSQL server, moved forward and back while engines use it.

HostClock     Engines on SQLite read the wall clock through the module `time`. The shim replaces that name in modules of
              the engine. All processes read the same offset from a file that they share.
SleepingHost  Workers measure the terms of their leases by a clock that also runs while the host sleeps. The shim moves
              this clock of one process forward, as if the host had slept.
ServerClock   A schema has its own function `clock_timestamp`, which adds an offset from a table. Engines connect with a
              search path in which this schema comes before `pg_catalog`.

None of them moves a monotonic clock, so a test can measure durations with `time.monotonic`.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import flowfabric.backends.sqlite.clock
import flowfabric.engine.context
import flowfabric.engine.lease_locks
from tests.stores import PostgresTestStore, SqliteTestStore

_OFFSET = struct.Struct("=q")
_READERS: tuple[ModuleType, ...] = (flowfabric.backends.sqlite.clock, flowfabric.engine.context)
_SHIM = """
CREATE SCHEMA "{name}";
CREATE TABLE "{name}".shift (by INTERVAL NOT NULL);
INSERT INTO "{name}".shift (by) VALUES (INTERVAL '0');
CREATE FUNCTION "{name}".clock_timestamp() RETURNS TIMESTAMPTZ LANGUAGE sql VOLATILE AS
$$ SELECT pg_catalog.clock_timestamp() + (SELECT by FROM "{name}".shift) $$;
"""


class HostClock:
    """The wall clock of a host, for engines on SQLite."""

    can_go_back = False

    def __init__(self, store: SqliteTestStore, path: Path) -> None:
        self.url = store.url
        self.path = path
        if not path.exists():
            path.write_bytes(bytes(_OFFSET.size))
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), _OFFSET.size)

    async def move_to(self, offset_s: float) -> None:
        """Let the wall clock of all processes be this far ahead of the real time."""
        _OFFSET.pack_into(self._shared, 0, round(offset_s * 1e9))

    def time_ns(self) -> int:
        """Return the time of the moved clock."""
        return time.time_ns() + int(_OFFSET.unpack_from(self._shared)[0])

    def install(self) -> None:
        """Let the engines of this process use the moved clock from now on."""
        for module in _READERS:
            vars(module)["time"] = _MovedTime(time_ns=self.time_ns)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let the engines of this process use the moved clock inside the block."""
        self.install()
        try:
            yield
        finally:
            for module in _READERS:
                vars(module)["time"] = time

    async def remove(self) -> None:
        """Close the shared file."""
        self._shared.close()


class SleepingHost:
    """A host that sleeps while this process has leases."""

    def __init__(self) -> None:
        self._slept_s = 0.0

    def sleep(self, seconds: float) -> None:
        """Let the host sleep for so long, in an instant."""
        self._slept_s += seconds

    def clock_gettime(self, clock: int) -> float:
        """Return the time of a clock. Only the one that runs during sleep is moved."""
        return time.clock_gettime(clock) + (self._slept_s if clock == time.CLOCK_BOOTTIME else 0.0)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let the workers of this process use the moved clock inside the block."""
        lease_time: Any = flowfabric.engine.lease_locks.lease_time
        # Several modules hold this partial, so change the partial itself.
        read, arguments = lease_time.func, lease_time.args
        lease_time.__setstate__((self.clock_gettime, arguments, {}, None))
        try:
            yield
        finally:
            lease_time.__setstate__((read, arguments, {}, None))


class _MovedTime:
    """The module `time` with some of its functions replaced."""

    def __init__(self, **functions: Any) -> None:
        vars(self).update(functions)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class ServerClock:
    """The clock of a PostgreSQL server, as the sessions that connect with `url` see it."""

    can_go_back = True

    def __init__(self, store: PostgresTestStore) -> None:
        self._store = store
        self._name = f"{store.schema}_clock"
        self.url = f"{store.url}&search_path={self._name}%2Cpg_catalog"

    async def create(self) -> None:
        """Create the function that replaces the server's clock."""
        async with self._store.raw_connection() as connection:
            await connection.execute(_SHIM.format(name=self._name))

    async def move_to(self, offset_s: float) -> None:
        """Let the server's clock be this far ahead of the real time."""
        async with self._store.raw_connection() as connection:
            await connection.execute(f'UPDATE "{self._name}".shift SET by = make_interval(secs => $1)', offset_s)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Do nothing, because the clock is on the server."""
        yield

    async def remove(self) -> None:
        """Drop the function."""
        async with self._store.raw_connection() as connection:
            await connection.execute(f'DROP SCHEMA "{self._name}" CASCADE')


async def movable_clock(store: SqliteTestStore | PostgresTestStore, folder: Path) -> HostClock | ServerClock:
    """Return the clock of a store. Only engines that connect with the clock's `url` use it."""
    if isinstance(store, SqliteTestStore):
        return HostClock(store, folder / "clock")
    clock = ServerClock(store)
    await clock.create()
    return clock
