"""One process at a time checkpoints the write-ahead log, and the log stays short."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flowfabric.backends.sqlite.lending import WriterConnection
from flowfabric.engine import Engine, Lease, Step, Submission
from tests.concurrency.gates import eventually
from tests.scenarios import submitted
from tests.stores import SqliteTestStore, opened

MOST_BYTES = 16 * 1024 * 1024
MEGABYTE = b"x" * 1_000_000


@pytest.fixture
def store(tmp_path: Path) -> SqliteTestStore:
    return SqliteTestStore(tmp_path)


@pytest.fixture
async def engine(store: SqliteTestStore) -> AsyncIterator[Engine]:
    async with opened(store) as engine:
        yield engine


class Log:
    """The length of a store's log and the longest length seen."""

    def __init__(self, store: SqliteTestStore) -> None:
        self._path = Path(f"{store.url}-wal")
        self.longest = 0

    def look(self) -> int:
        present = self._path.stat().st_size
        self.longest = max(self.longest, present)
        return present


async def test_no_connection_of_the_engine_checkpoints_automatically(engine: Engine) -> None:
    await submitted(engine)
    await asyncio.gather(*(engine.executions.count() for _ in range(8)))
    [writer] = [each for each in connections_of(engine) if isinstance(each, WriterConnection)]
    readers = [each for each in connections_of(engine) if each is not writer]
    assert writer.execute("PRAGMA wal_autocheckpoint").fetchone()[0] == 0
    assert readers
    for reader in readers:
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader.execute("DELETE FROM ff_lane")


async def test_durable_store_syncs_and_uses_wal_mode(store: SqliteTestStore) -> None:
    for durable, synchronous in ((True, 2), (False, 1)):
        async with opened(store, durable=durable) as engine:
            await engine.executions.count()
            for connection in connections_of(engine):
                assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
                if isinstance(connection, WriterConnection):
                    assert connection.execute("PRAGMA synchronous").fetchone()[0] == synchronous


async def test_only_the_holder_of_the_lock_file_checkpoints(store: SqliteTestStore, engine: Engine) -> None:
    log, lock = Log(store), os.open(f"{store.url}-checkpoint", os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        in_file = store.path.stat().st_size
        for _ in range(12):
            await write_and_rest(engine)
        assert log.look() > 12 * len(MEGABYTE)
        assert store.path.stat().st_size == in_file
    finally:
        os.close(lock)
    for _ in range(6):
        await write_and_rest(engine)
    assert log.look() < 12 * len(MEGABYTE)
    assert store.path.stat().st_size > 12 * len(MEGABYTE)


async def test_log_stays_short_over_many_small_writes(store: SqliteTestStore, engine: Engine) -> None:
    log = Log(store)
    await write(engine, log, 5_000, b"x", writers=8)
    assert log.longest < MOST_BYTES


async def test_log_stays_short_while_others_read(store: SqliteTestStore, engine: Engine) -> None:
    log = Log(store)

    async def read() -> None:
        while True:
            await engine.executions.list(limit=20)

    readers = [asyncio.create_task(read()) for _ in range(2)]
    await write(engine, log, 800, b"x" * 40_000, writers=4)
    for reader in readers:
        reader.cancel()
    await asyncio.wait(readers)
    # A reader may delay the checkpoint by a few writes. Without any checkpoint the log would grow to 40 MB.
    assert log.longest < 1.5 * MOST_BYTES


async def test_log_stays_short_while_the_writer_is_always_busy(store: SqliteTestStore, engine: Engine) -> None:
    await engine.executions.submit_many([Submission(kind="job")] * 1_000)
    leases = await engine.leases.claim(["default"], "w", limit=1_000)
    log, result = Log(store), Step("large", b"x" * 30_000)

    async def delay(lease: Lease) -> None:
        await engine.leases.delay(lease.fence, after="1h", steps=[result])
        log.look()

    await asyncio.gather(*(delay(lease) for lease in leases))
    assert log.longest < MOST_BYTES


async def test_long_reader_blocks_no_writer(store: SqliteTestStore, engine: Engine) -> None:
    await submitted(engine)
    with closing(sqlite3.connect(store.path, isolation_level=None)) as reader:
        reader.execute("PRAGMA wal_autocheckpoint = 0")
        reader.execute("BEGIN")
        assert reader.execute("SELECT COUNT(*) FROM ff_execution").fetchone() == (1,)
        async with asyncio.timeout(8):
            for _ in range(12):
                await submitted(engine, payload=MEGABYTE)
        assert reader.execute("SELECT COUNT(*) FROM ff_execution").fetchone() == (1,)


async def write(engine: Engine, log: Log, number: int, payload: bytes, *, writers: int) -> None:
    """Write from several concurrent callers and record the length of the log after each write."""
    left = number

    async def go_on() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await engine.executions.submit("job", payload)
            log.look()

    await asyncio.gather(*(go_on() for _ in range(writers)))


async def write_and_rest(engine: Engine) -> None:
    """Write a megabyte and let the idle writer do its maintenance."""
    await submitted(engine, payload=MEGABYTE)
    await eventually(lambda: rests(engine))


async def rests(engine: Engine) -> bool:
    store: Any = engine._context.store
    frame = sys._current_frames().get(store._writer._thread.ident)
    return frame is not None and frame.f_code.co_name == "wait"


def connections_of(engine: Engine) -> list[sqlite3.Connection]:
    """Return every connection that the engine has opened."""
    store: Any = engine._context.store
    return [store._writer._connection, *store._read_connections]
