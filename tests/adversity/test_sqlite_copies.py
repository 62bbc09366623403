"""A store that was copied or moved is checked once. A damaged copy, or one with the log of another file, is refused."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from flowfabric import App
from flowfabric.engine import Created, Engine, Refused, Submission, Unavailable, connect
from flowfabric.engine.opener import restore_backup
from tests.adversity.test_sqlite_replaced import next_to
from tests.scenarios import submitted
from tests.stores import SqliteTestStore, opened

CHECKED = "The store was copied or moved from another file, and was checked; no damage was found"


@pytest.fixture
def store(tmp_path: Path) -> SqliteTestStore:
    return SqliteTestStore(tmp_path)


async def fill(engine: Engine, number: int = 200) -> None:
    await engine.executions.submit_many([Submission(kind="job", payload=b"x" * 500) for _ in range(number)])
    for lease in await engine.leases.claim(["default"], "w", limit=number // 2):
        await engine.leases.complete(lease.fence, b"done")


def copy(source: Path, target: Path, *suffixes: str) -> None:
    for suffix in suffixes:
        file = source.with_name(source.name + suffix)
        if file.exists():
            shutil.copy(file, target.with_name(target.name + suffix))


def other(store: SqliteTestStore) -> SqliteTestStore:
    folder = store.path.with_name("other")
    folder.mkdir(exist_ok=True)
    return SqliteTestStore(folder)


async def test_sound_copy_is_checked_once_and_used(store: SqliteTestStore, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(store) as engine:
        await fill(engine)
    target = other(store)
    copy(store.path, target.path, "")
    for times in (1, 1):
        async with opened(target) as engine:
            assert len((await engine.executions.list()).items) == 100
        assert [record.message for record in caplog.records].count(CHECKED) == times


async def test_copy_begins_a_new_era_of_event_positions(store: SqliteTestStore, tmp_path: Path) -> None:
    """Subscribers may have read events of the original that the copy will number again."""
    async with opened(store) as engine:
        await fill(engine, 2)
        await engine.backup(str(tmp_path / "backup.db"))
        await engine.backup(str(tmp_path / "copy.db"))
    await restore_backup(str(tmp_path / "restored.db"), str(tmp_path / "backup.db"))
    eras = "SELECT era, known_id, (SELECT MAX(id) FROM ff_event) AS newest, (SELECT COUNT(*) FROM ff_era) AS eras"
    for path, number in ((store.path, 0), (tmp_path / "restored.db", 1), (tmp_path / "copy.db", 1)):
        async with connect(str(path), durable=False):
            with closing(sqlite3.connect(path)) as connection:
                [(era, known, newest, count)] = connection.execute(f"{eras} FROM ff_store").fetchall()
        assert (era, count) == (number, number)
        assert not number or known == newest > 0


async def test_backup_that_is_copied_over_its_store_begins_a_new_era(
    store: SqliteTestStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The store finds itself in the same file as before, but its history went back."""
    backup = tmp_path / "backup.db"
    async with opened(store) as engine:
        await fill(engine, 2)
        await engine.backup(str(backup))
        await fill(engine, 2)
        newest = [event.cursor async for event in engine.events.subscribe(start="beginning", follow=False)][-1]
    with store.path.open("wb") as file:
        file.write(backup.read_bytes())
    async with opened(store) as engine:
        assert [record.message for record in caplog.records].count(CHECKED) == 1
        await fill(engine, 20)
        events = [event async for event in engine.events.subscribe(cursor=newest, follow=False)]
    assert len(events) >= 20


async def test_copy_with_its_log_is_complete(store: SqliteTestStore) -> None:
    target = other(store)
    async with opened(store) as engine:
        await fill(engine)
        copy(store.path, target.path, "", "-wal")
        async with opened(target) as copied:
            assert await copied.find_damage() == []
            assert await copied.executions.count() == await engine.executions.count()


@pytest.mark.parametrize("damage", ["index", "events", "result"])
async def test_damaged_copy_is_refused(store: SqliteTestStore, damage: str) -> None:
    async with opened(store) as engine:
        await fill(engine)
    target = other(store)
    copy(store.path, target.path, "")
    with closing(sqlite3.connect(target.path)) as connection, connection:
        if damage == "index":
            connection.execute("PRAGMA writable_schema = ON")
            connection.execute(
                "UPDATE sqlite_schema SET rootpage = (SELECT rootpage FROM sqlite_schema WHERE name = 'ff_event_apart')"
                " WHERE name = 'ff_event_version'"
            )
        elif damage == "events":
            connection.execute("DELETE FROM ff_event WHERE id = (SELECT MAX(id) FROM ff_event)")
        else:
            connection.execute("DELETE FROM ff_attempt WHERE rowid = 1")
    for _ in range(2):
        with pytest.raises(Unavailable) as refused:
            async with opened(target):
                pass
        assert refused.value.code == "storage_damaged"
        assert "flowfabric restore" in refused.value.message


async def test_log_of_another_file_is_refused_and_not_applied(store: SqliteTestStore) -> None:
    """A backup is moved over a store in use: its log belongs to the former file."""
    async with opened(store) as engine:
        await fill(engine)
    backup = store.path.with_name("backup.db")
    shutil.copy(store.path, backup)
    async with opened(store) as engine:
        await fill(engine, 300)
    async with opened(store) as engine:
        await submitted(engine)
        backup.rename(store.path)
        before = store.path.read_bytes()
        with pytest.raises(Unavailable) as refused:
            async with opened(store):
                pass
        assert refused.value.code == "storage_log_mismatch"
        assert store.path.read_bytes() == before
    assert store.path.read_bytes() == before


async def test_log_of_the_same_file_is_accepted_after_a_crash(store: SqliteTestStore) -> None:
    """The log is also accepted if a checkpoint has moved only a part of it into the file."""
    async with opened(store) as engine:
        await fill(engine)
        checkpointed = other(store)
        with closing(store.raw_connection()) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT id FROM ff_execution").fetchall()
            id_ = await submitted(engine)
            with closing(store.raw_connection()) as connection:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            copy(store.path, checkpointed.path, "", "-wal")
        async with opened(checkpointed) as copied:
            assert (await copied.executions.describe(id_)).state == "waiting"
            assert await copied.find_damage() == []


async def test_log_of_transactions_with_several_submits_is_accepted(store: SqliteTestStore) -> None:
    async with opened(store) as engine:
        await submitted(engine)
    async with opened(store) as engine:
        with closing(store.raw_connection()) as connection:
            connection.execute("BEGIN IMMEDIATE")
            for _ in range(3):
                engine.executions.submit_in_transaction_sync(connection, Submission(kind="job", payload=b"1"))
            connection.execute("COMMIT")
        target = other(store)
        copy(store.path, target.path, "", "-wal")
        async with opened(target) as copied:
            assert len((await copied.executions.list()).items) == 4


async def test_log_without_its_file_is_not_deleted(store: SqliteTestStore) -> None:
    async with opened(store) as engine:
        await fill(engine)
        copy(store.path, other(store).path, "-wal")
    target = other(store)
    before = next_to(target, "-wal").read_bytes()
    with pytest.raises(Unavailable) as refused:
        async with opened(target):
            pass
    assert refused.value.code == "storage_log_mismatch"
    assert next_to(target, "-wal").read_bytes() == before
    assert not target.path.exists()


async def test_store_in_use_whose_log_was_deleted_is_not_opened(store: SqliteTestStore) -> None:
    async with opened(store) as engine:
        await submitted(engine)
        next_to(store, "-wal").unlink()
        with pytest.raises(Unavailable) as refused:
            await connect_in_another_process(store)
        assert refused.value.code == "storage_log_mismatch"


async def connect_in_another_process(store: SqliteTestStore) -> None:
    program = (
        "import asyncio, sys; from flowfabric.engine import connect, FlowFabricError\n"
        "async def main():\n"
        "    try:\n"
        "        async with connect(sys.argv[1], durable=False): pass\n"
        "    except FlowFabricError as error: print(error.code, end='')\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        store.url,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    if output:
        raise Unavailable(output.decode(), "another process got this error")


@pytest.mark.parametrize("suffixes", [("-wal",), ("-wal", "-shm")])
async def test_store_without_the_log_of_an_unfinished_checkpoint_is_always_refused(
    store: SqliteTestStore, suffixes: tuple[str, ...]
) -> None:
    async with opened(store) as engine:
        await fill(engine)
        with closing(sqlite3.connect(store.path)) as reader, closing(sqlite3.connect(store.path)) as other_process:
            reader.execute("BEGIN")
            reader.execute("SELECT COUNT(*) FROM ff_execution").fetchone()
            await fill(engine, 400)
            other_process.execute("PRAGMA wal_checkpoint").fetchone()
            for suffix in suffixes:
                next_to(store, suffix).unlink()
    for _ in range(2):
        with pytest.raises(Unavailable) as refused:
            async with opened(store):
                raise AssertionError("a damaged store was accepted")
        assert refused.value.code == "storage_damaged"


async def test_backup_of_a_store_in_use_is_complete_and_sound(store: SqliteTestStore, tmp_path: Path) -> None:
    target = other(store)
    async with opened(store) as engine:
        await fill(engine)
        writes = [asyncio.create_task(fill(engine, 20)) for _ in range(5)]
        await engine.backup(str(target.path))
        await asyncio.gather(*writes)
        with pytest.raises(Refused) as refused:
            await engine.backup(str(target.path))
        assert refused.value.code == "backup_exists"
    assert sorted(path.name for path in target.path.parent.iterdir()) == ["test.db"]
    async with opened(target) as copied:
        assert await copied.find_damage() == []
        assert len((await copied.executions.list()).items) == 100


async def test_restore_creates_a_missing_store(store: SqliteTestStore, tmp_path: Path) -> None:
    backup = str(tmp_path / "backup.db")
    async with opened(store) as engine:
        id_ = await submitted(engine)
        await engine.backup(backup)
    target = other(store)
    assert await restore_backup(target.url, backup) is None
    async with opened(target, migrate=False) as engine:
        assert (await engine.executions.describe(id_)).state == "waiting"


async def test_restore_keeps_the_former_store_with_its_log(store: SqliteTestStore, tmp_path: Path) -> None:
    backup = str(tmp_path / "backup.db")
    async with opened(store) as engine:
        old = await submitted(engine)
        await engine.backup(backup)
        new = await submitted(engine)
        copy(store.path, other(store).path, "", "-wal")
    kept = await restore_backup(other(store).url, backup)
    assert kept is not None
    async with opened(other(store)) as engine, connect(kept, durable=False) as former:
        assert (await engine.executions.describe(old)).id == old
        assert len((await engine.executions.list()).items) == 1
        assert {item.id for item in (await former.executions.list()).items} == {old, new}


async def test_each_restore_keeps_the_store_that_it_replaces(store: SqliteTestStore, tmp_path: Path) -> None:
    async with opened(store) as engine:
        await engine.backup(str(tmp_path / "backup.db"))
    kept = [await restore_backup(store.url, str(tmp_path / "backup.db")) for _ in range(3)]
    former = [name for name in names_in(tmp_path) if "before-restore" in name]
    assert former == [Path(path or "").name for path in kept]


async def test_restored_store_has_the_permissions_of_the_store_that_it_replaces(
    store: SqliteTestStore, tmp_path: Path
) -> None:
    async with opened(store) as engine:
        await engine.backup(str(tmp_path / "backup.db"))
    store.path.chmod(0o660)
    await restore_backup(store.url, str(tmp_path / "backup.db"))
    assert store.path.stat().st_mode & 0o777 == 0o660


async def test_restore_over_a_store_in_use_is_refused(store: SqliteTestStore, tmp_path: Path) -> None:
    backup = tmp_path / "backup.db"
    async with opened(store) as engine:
        await engine.backup(str(backup))
        program = "import asyncio, sys; from flowfabric.cli.main import main; sys.exit(main(sys.argv[1:]))"
        command = [sys.executable, "-c", program, "restore", str(backup), "--store", store.url, "--yes"]
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        _, errors = await process.communicate()
        assert process.returncode == 4, errors
        assert b"store_in_use" in errors
        assert isinstance(await engine.executions.submit("job", b"1"), Created)


async def test_damaged_backup_is_not_restored(store: SqliteTestStore, tmp_path: Path) -> None:
    backup = tmp_path / "backup.db"
    async with opened(store) as engine:
        await fill(engine)
        await engine.backup(str(backup))
        await submitted(engine)
    with closing(sqlite3.connect(backup)) as connection, connection:
        connection.execute("DELETE FROM ff_event WHERE id = (SELECT MAX(id) FROM ff_event)")
    before = store.path.read_bytes()
    with pytest.raises(Unavailable) as refused:
        await restore_backup(store.url, str(backup))
    assert refused.value.code == "storage_damaged"
    assert store.path.read_bytes() == before
    assert names_in(tmp_path) == ["backup.db", "test.db", "test.db-checkpoint"]


async def test_restored_store_can_be_opened_after_the_log_of_the_former_one_was_left(store: SqliteTestStore) -> None:
    async with opened(store) as engine:
        await fill(engine)
        backup = str(store.path.with_name("backup.db"))
        await engine.backup(backup)
        copy(store.path, other(store).path, "-wal")
    await restore_backup(other(store).url, backup)
    async with opened(other(store)) as engine:
        assert await engine.find_damage() == []


async def test_app_keeps_its_store_after_a_change_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    apps = [App("jobs.db"), App("sqlite:///more.db")]
    opener = connect("direct.db", durable=False)
    monkeypatch.chdir(tmp_path / "elsewhere")
    for app in apps:
        async with app:
            await app.engine()
    async with opener:
        pass
    assert names_in(tmp_path / "elsewhere") == []
    assert {"jobs.db", "more.db", "direct.db"} <= set(names_in(tmp_path))


async def test_app_without_a_store_keeps_the_default_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLOWFABRIC_STORE", raising=False)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    app = App()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert app.store == str(tmp_path / "flowfabric.db")


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
async def test_only_the_owner_can_read_a_new_store(store: SqliteTestStore, umask: int) -> None:
    before = os.umask(umask)
    try:
        async with opened(store) as engine:
            await submitted(engine)
            modes = {path.name: path.stat().st_mode & 0o777 for path in store.path.parent.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(["test.db", "test.db-wal", "test.db-shm", "test.db-checkpoint"], 0o600)


async def test_store_that_others_can_read_logs_a_warning(
    store: SqliteTestStore, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(store):
        pass
    assert not caplog.records
    warned = other(store)
    copy(store.path, warned.path, "")
    warned.path.chmod(0o644)
    caplog.set_level(logging.WARNING)
    async with opened(warned):
        pass
    assert any("can read" in record.message and warned.url in record.message for record in caplog.records)


async def test_key_file_that_others_can_read_logs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key_file = tmp_path / "keys"
    key_file.write_text("k1=" + "ab" * 32)
    key_file.chmod(0o644)
    _ = connect(":memory:", key_file=str(key_file))
    assert any("can read" in record.message and str(key_file) in record.message for record in caplog.records)


async def test_file_system_without_locks_has_its_own_error(
    store: SqliteTestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    for function in ("lockf", "flock"):
        with monkeypatch.context() as patch:
            patch.setattr(fcntl, function, refuse)
            with pytest.raises(Unavailable) as refused:
                async with opened(store):
                    pass
            assert refused.value.code == "storage_without_locks"
            assert "PostgreSQL" in refused.value.message


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
