"""A file that cannot be written, read or opened raises a FlowFabric error, and nothing is half written."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from flowfabric.engine import (
    Created,
    Duplicate,
    Ended,
    Engine,
    FlowFabricError,
    State,
    Step,
    Unavailable,
    connect,
)
from tests.children import children
from tests.concurrency.soundness import assert_sound
from tests.scenarios import leased, submitted
from tests.stores import SqliteTestStore, opened, snapshot

LARGE = b"x" * 200_000
CHECKPOINT_BYTES = 5_000_000


@pytest.fixture
def store(tmp_path: Path) -> SqliteTestStore:
    return SqliteTestStore(tmp_path)


async def test_full_store_refuses_writes_whole_and_recovers(store: SqliteTestStore) -> None:
    async with opened(store) as engine:
        lease = await leased(engine)
        limit_pages(engine, 20)
        before = await snapshot(store)
        for write in (
            engine.executions.submit("job", LARGE),
            engine.leases.complete(lease.fence, LARGE),
            engine.leases.checkpoint(lease.fence, [Step("small", b"1"), Step("large", LARGE)]),
        ):
            with pytest.raises(Unavailable) as full:
                await write
            assert full.value.code == "storage_full"
        assert await snapshot(store) == before
        assert (await engine.executions.describe(lease.execution_id)).state == "active"
        limit_pages(engine, 1_000_000)
        assert await engine.leases.complete(lease.fence, LARGE) == Ended(State.COMPLETED)
    await assert_sound(store)
    assert await store.query("PRAGMA integrity_check") == [{"integrity_check": "ok"}]


async def test_store_that_fills_up_under_load_holds_exactly_the_acknowledged_work(
    store: SqliteTestStore,
) -> None:
    async with opened(store) as engine:
        limit_pages(engine, 400)
        ids = [engine._context.ids.mint() for _ in range(40)]
        calls = [engine.executions.submit("job", b"x" * 50_000, id=id_) for id_ in ids]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert {code_of(result) for result in results} == {"created", "storage_full"}
        acknowledged = {str(id_) for id_, result in zip(ids, results, strict=True) if isinstance(result, Created)}
        assert {row["id"] for row in await store.query("SELECT id FROM ff.execution")} == acknowledged
        limit_pages(engine, 1_000_000)
        for id_ in ids:
            again = await engine.executions.submit("job", b"x" * 50_000, id=id_)
            assert isinstance(again, Duplicate if str(id_) in acknowledged else Created)


async def test_store_at_the_file_size_limit_holds_exactly_the_acknowledged_work(
    store: SqliteTestStore,
) -> None:
    with children("tests.adversity.storage_child", ("limited", store.url)) as [child]:
        child.send_line("go")
        report = child.read_reply()
    assert report["code"] in ("storage_full", "storage_io_error")
    assert len(report["acknowledged"]) > 3
    async with opened(store) as engine:
        stored_ids = {row["id"] for row in await store.query("SELECT id FROM ff.execution")}
        assert stored_ids == set(report["acknowledged"])
        await submitted(engine)
    assert await store.query("PRAGMA integrity_check") == [{"integrity_check": "ok"}]


async def test_read_only_store_is_refused(tmp_path: Path) -> None:
    stores = {}
    for what in ("test.db", "", "test.db-checkpoint"):
        folder = tmp_path / f"without {what}"
        folder.mkdir()
        stores[folder / what] = SqliteTestStore(folder)
        async with opened(stores[folder / what]) as engine:
            await submitted(engine)
    for protected in stores:
        protected.chmod(protected.stat().st_mode & ~0o222)
    arguments = [("unprivileged", store.url) for store in stores.values()]
    with children("tests.adversity.storage_child", *arguments) as processes:
        for child in processes:
            child.send_line("go")
        file, folder, lock_file = [child.read_reply() for child in processes]
    for protected in stores:
        protected.chmod(protected.stat().st_mode | 0o200)
    assert file["code"] in ("storage_read_only", "storage_not_found")
    assert folder["code"] in ("storage_read_only", "storage_not_found")
    # A process only locks the lock file, which needs no write permission.
    assert lock_file["code"] == ""
    assert lock_file["log_bytes"] < CHECKPOINT_BYTES


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
async def test_lock_file_has_the_permissions_of_the_database(store: SqliteTestStore, mode: int) -> None:
    store.path.touch()
    store.path.chmod(mode)
    before = os.umask(0o077)
    try:
        async with opened(store) as engine:
            await submitted(engine)
    finally:
        os.umask(before)
    assert lock_file_of(store).stat().st_mode & 0o777 == mode
    assert lock_file_of(store).stat().st_uid == store.path.stat().st_uid


async def test_process_without_access_to_the_lock_file_works_and_never_checkpoints(
    store: SqliteTestStore,
) -> None:
    async with opened(store) as engine:
        await submitted(engine)
    lock_file_of(store).chmod(0)
    with children("tests.adversity.storage_child", ("unprivileged", store.url)) as [child]:
        child.send_line("go")
        report = child.read_reply()
    assert report["code"] == ""
    assert report["log_bytes"] > CHECKPOINT_BYTES
    stored_ids = {row["id"] for row in await store.query("SELECT id FROM ff.execution")}
    assert stored_ids > set(report["acknowledged"])


@pytest.mark.parametrize("where", ["beginning", "middle"])
async def test_damaged_file_is_reported_as_damaged(store: SqliteTestStore, where: str) -> None:
    async with opened(store) as engine:
        for _ in range(200):
            await submitted(engine, payload=b"x" * 500)
    size = store.path.stat().st_size
    with store.path.open("r+b") as file:
        file.seek(0 if where == "beginning" else 4096)
        file.write(b"\xa5" * (size - 4096 if where == "middle" else 4096))
    with pytest.raises(Unavailable) as damaged:
        async with opened(store) as engine:
            await engine.executions.list()
    assert damaged.value.code == "storage_damaged"


@pytest.mark.parametrize("name", ["missing/test.db", "file/test.db"])
async def test_missing_folder_is_named_in_the_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable) as refused:
        await connect(str(tmp_path / name))
    assert refused.value.code == "storage_not_found"
    assert str((tmp_path / name).parent) in refused.value.message


@pytest.mark.parametrize("suffix", ["", "-wal", "-checkpoint"])
async def test_folder_in_place_of_the_file_raises_our_error(store: SqliteTestStore, suffix: str) -> None:
    store.path.with_name(store.path.name + suffix).mkdir()
    with pytest.raises(FlowFabricError):
        async with opened(store) as engine:
            await submitted(engine)


async def test_call_on_a_closed_engine_raises_a_clear_error(store: SqliteTestStore) -> None:
    engine = await store.connecting()
    lease = await leased(engine)
    await engine.close()
    await engine.close()
    for call in (engine.ping(), engine.leases.renew(lease.fence), engine.executions.submit("job"), engine.lanes.list()):
        with pytest.raises(Unavailable) as closed:
            await call
        assert closed.value.code == "store_closed"


async def test_call_made_before_the_close_returns_its_result(store: SqliteTestStore) -> None:
    engine = await store.connecting()
    calls = [asyncio.ensure_future(engine.executions.submit("job")) for _ in range(20)]
    await asyncio.sleep(0)
    await engine.close()
    results = await asyncio.gather(*calls, return_exceptions=True)
    created = [result for result in results if isinstance(result, Created)]
    assert {code_of(result) for result in results} <= {"created", "store_closed"}
    assert len(await store.query("SELECT id FROM ff.execution")) == len(created)


def lock_file_of(store: SqliteTestStore) -> Path:
    return store.path.with_name(store.path.name + "-checkpoint")


def limit_pages(engine: Engine, more: int) -> None:
    """Let the file grow by this many pages. After that SQLite reports a full disk."""
    store: Any = engine._context.store
    connection: sqlite3.Connection = store._writer._connection
    [present] = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {present + more}")


def code_of(result: object) -> str:
    if isinstance(result, Created):
        return "created"
    return result.code if isinstance(result, FlowFabricError) else repr(result)
