"""A process whose store file was deleted, moved or replaced acknowledges nothing, and damages no file at the path."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flowfabric.backends.sqlite.lending import WriterConnection
from flowfabric.engine import Created, Step, Submission, Unavailable
from tests.scenarios import leased, submitted
from tests.stores import SqliteTestStore, opened

FILES = ("", "-wal", "-shm")


@pytest.fixture
def store(tmp_path: Path) -> SqliteTestStore:
    return SqliteTestStore(tmp_path)


def delete(store: SqliteTestStore) -> None:
    store.path.unlink()


def move(store: SqliteTestStore) -> None:
    store.path.rename(store.path.with_name("elsewhere.db"))


def replace(store: SqliteTestStore) -> None:
    other = store.path.with_name("other.db")
    with closing(sqlite3.connect(store.path)) as source, closing(sqlite3.connect(other)) as target:
        source.backup(target)
    other.rename(store.path)


def delete_log(store: SqliteTestStore) -> None:
    next_to(store, "-wal").unlink()


def delete_index(store: SqliteTestStore) -> None:
    next_to(store, "-shm").unlink()


FAULTS = (delete, move, replace, delete_log, delete_index)
Fault = Callable[[SqliteTestStore], None]


@pytest.fixture(params=FAULTS, ids=lambda fault: fault.__name__)
def fault(request: pytest.FixtureRequest) -> Fault:
    return request.param  # type: ignore[no-any-return]


async def test_write_after_the_fault_is_not_acknowledged(store: SqliteTestStore, fault: Fault) -> None:
    async with opened(store) as engine:
        await submitted(engine)
        fault(store)
        for _ in range(2):
            with pytest.raises(Unavailable) as refused:
                await engine.executions.submit("job", b"1")
            assert refused.value.code == "storage_replaced"
            assert str(store.path) in refused.value.message


async def test_new_readers_after_a_move_leave_the_log_for_the_file_that_is_moved_back(store: SqliteTestStore) -> None:
    async with opened(store) as engine:
        id_ = await submitted(engine)
        move(store)
        # Each concurrent read needs its own connection, and SQLite opens it after the move.
        reads = await asyncio.gather(*(engine.executions.describe(id_) for _ in range(8)), return_exceptions=True)
        assert {getattr(error, "code", error) for error in reads} == {"storage_replaced"}
        assert not store.path.exists()
    store.path.with_name("elsewhere.db").rename(store.path)
    async with opened(store) as engine:
        assert (await engine.executions.describe(id_)).id == id_


async def test_read_after_the_fault_returns_no_stale_content(store: SqliteTestStore, fault: Fault) -> None:
    async with opened(store) as engine:
        id_ = await submitted(engine)
        fault(store)
        for read in (lambda: engine.executions.describe(id_), engine.ping, engine.store_info, engine.executions.list):
            with pytest.raises(Unavailable) as refused:
                await read()
            assert refused.value.code == "storage_replaced"


async def test_step_transaction_after_the_fault_is_not_acknowledged(store: SqliteTestStore, fault: Fault) -> None:
    async with opened(store) as engine:
        lease = await leased(engine)
        fault(store)
        with pytest.raises(Unavailable) as refused:
            await engine.leases.transact(lease.fence, lambda db: b"1", record)
        assert refused.value.code == "storage_replaced"


async def test_submit_in_a_transaction_after_the_fault_is_refused(store: SqliteTestStore, fault: Fault) -> None:
    async with opened(store) as engine:
        await submitted(engine)
        with closing(store.raw_connection()) as connection:
            connection.execute("SELECT id FROM ff_execution").fetchall()
            fault(store)
            connection.execute("BEGIN IMMEDIATE")
            with pytest.raises(Unavailable) as refused:
                engine.executions.submit_in_transaction_sync(connection, Submission(kind="job", payload=b"1"))
            assert refused.value.code == "storage_replaced"
            connection.execute("ROLLBACK")


async def test_connection_that_was_opened_before_the_replacement_is_not_joined(store: SqliteTestStore) -> None:
    async with opened(store) as engine:
        await submitted(engine)
    with closing(store.raw_connection()) as connection:
        connection.execute("SELECT id FROM ff_execution").fetchall()
        shutil.copy(store.path, store.path.with_name("copy.db"))
        remove(store)
        store.path.with_name("copy.db").rename(store.path)
        async with opened(store) as engine:
            connection.execute("BEGIN IMMEDIATE")
            with pytest.raises(Unavailable) as refused:
                engine.executions.submit_in_transaction_sync(connection, Submission(kind="job", payload=b"1"))
            assert refused.value.code == "storage_replaced"
            connection.execute("ROLLBACK")


@pytest.mark.parametrize("link_folder", [False, True], ids=["file", "folder"])
async def test_write_after_a_link_to_the_store_was_changed_is_not_acknowledged(
    tmp_path: Path, link_folder: bool
) -> None:
    """The next process would open the file that the link leads to now."""
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        async with opened(SqliteTestStore(tmp_path / folder)):
            pass
    link = tmp_path / "current" if link_folder else tmp_path / "test.db"
    suffix = "" if link_folder else "test.db"
    link.symlink_to(tmp_path / "first" / suffix)
    async with opened(SqliteTestStore(link if link_folder else tmp_path)) as engine:
        await submitted(engine)
        link.unlink()
        link.symlink_to(tmp_path / "second" / suffix)
        with pytest.raises(Unavailable) as refused:
            await engine.executions.submit("job", b"1")
        assert refused.value.code == "storage_replaced"


async def test_close_after_the_fault_changes_no_file_at_the_path(store: SqliteTestStore, fault: Fault) -> None:
    async with opened(store) as engine:
        for _ in range(20):
            await submitted(engine)
        fault(store)
        with pytest.raises(Unavailable):
            await submitted(engine)
        before = contents(store)
    assert contents(store) == before


async def test_close_without_a_failed_call_changes_no_file_at_the_path(store: SqliteTestStore, fault: Fault) -> None:
    async with opened(store) as engine:
        for _ in range(20):
            await submitted(engine)
        fault(store)
        before = contents(store)
    assert contents(store) == before


async def test_log_of_another_process_survives_the_close_of_the_former_one(store: SqliteTestStore) -> None:
    """The former process must not delete the new log, which has the same name as its own."""
    async with opened(store) as former:
        await submitted(former)
        remove(store)
        async with opened(store) as engine:
            id_ = await submitted(engine)
            await former.close()
            assert next_to(store, "-wal").stat().st_size > 0
            await submitted(engine)
            assert (await engine.executions.describe(id_)).state == "waiting"


async def test_former_process_runs_no_checkpoint(store: SqliteTestStore) -> None:
    async with opened(store) as engine:
        await submitted(engine)
        replace(store)
        before = contents(store)
        results = await asyncio.gather(
            *(engine.executions.submit("job", b"x" * 1_000_000) for _ in range(6)), return_exceptions=True
        )
        assert {getattr(result, "code", "created") for result in results} == {"storage_replaced"}
        assert contents(store) == before


async def test_commit_during_the_fault_is_not_acknowledged(
    store: SqliteTestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check after the commit decides: the file is deleted while the transaction commits."""

    def execute(self: sqlite3.Connection, sql: str, *arguments: Any) -> sqlite3.Cursor:
        cursor = sqlite3.Connection.execute(self, sql, *arguments)
        if sql == "COMMIT":
            delete(store)
        return cursor

    async with opened(store) as engine:
        await submitted(engine)
        monkeypatch.setattr(WriterConnection, "execute", execute)
        with pytest.raises(Unavailable) as refused:
            await engine.executions.submit("job", b"1")
        assert refused.value.code == "storage_replaced"
        monkeypatch.undo()


async def test_transaction_during_the_fault_is_not_acknowledged(store: SqliteTestStore) -> None:
    async with opened(store) as engine:
        lease = await leased(engine)
        with pytest.raises(Unavailable) as refused:
            await engine.leases.transact(lease.fence, lambda db: delete(store), record)
        assert refused.value.code == "storage_replaced"


async def test_file_that_is_moved_back_is_used_again_after_a_restart(store: SqliteTestStore) -> None:
    async with opened(store) as engine:
        id_ = await submitted(engine)
        move(store)
        with pytest.raises(Unavailable):
            await submitted(engine)
        store.path.with_name("elsewhere.db").rename(store.path)
    async with opened(store) as engine:
        assert (await engine.executions.describe(id_)).state == "waiting"
        assert isinstance(await engine.executions.submit("job", b"1"), Created)


async def test_normal_close_still_removes_the_log(store: SqliteTestStore) -> None:
    async with opened(store) as engine:
        await submitted(engine)
    assert not next_to(store, "-wal").exists()


def record(_: object) -> Step:
    return Step("write", b"1")


def remove(store: SqliteTestStore) -> None:
    for suffix in FILES:
        next_to(store, suffix).unlink(missing_ok=True)


def next_to(store: SqliteTestStore, suffix: str) -> Path:
    return store.path.with_name(store.path.name + suffix)


def contents(store: SqliteTestStore) -> dict[str, bytes | None]:
    paths = {suffix: next_to(store, suffix) for suffix in ("", "-wal")}
    return {suffix: path.read_bytes() if path.exists() else None for suffix, path in paths.items()}
