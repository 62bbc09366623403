"""A worker whose store file was replaced stops with one error line and a failing exit code."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

import pytest

from flowfabric import App, Unavailable, step
from tests.adversity.test_sqlite_replaced import delete, delete_log, move, replace
from tests.stores import SqliteTestStore

PROGRAM = """
import asyncio, sys
from flowfabric import App

app = App({path!r}, options={{"durable": False}})

@app.task
async def nap(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "rested"

if __name__ == "__main__":
    app.run()
"""
EXIT_WITHIN_S = 20


@pytest.fixture
def store(tmp_path: Path) -> SqliteTestStore:
    return SqliteTestStore(tmp_path)


@pytest.mark.parametrize("fault", [delete, move, replace, delete_log], ids=lambda fault: fault.__name__)
async def test_idle_worker_stops_with_one_line(store: SqliteTestStore, fault: object, tmp_path: Path) -> None:
    with worker(tmp_path, store, "flowfabric", "worker", "program:app", "--quiet") as process:
        await wait_for_worker(store, process)
        fault(store)  # type: ignore[operator]
        _, errors = process.communicate(timeout=EXIT_WITHIN_S)
    assert process.returncode == 5
    lines = errors.splitlines()
    assert len(lines) == 1, errors
    assert lines[0].startswith("flowfabric: storage_replaced: ")


async def test_busy_worker_stops_with_one_line(store: SqliteTestStore, tmp_path: Path) -> None:
    with worker(tmp_path, store, "flowfabric", "worker", "program:app", "--quiet", "--lease", "1s") as process:
        app = declared(store)
        async with app:
            for _ in range(10):
                _ = await app.tasks["nap"].submit(60.0)
            await wait_until(lambda: count(store, "SELECT id FROM ff.execution WHERE state = 'active'") == 10)
        move(store)
        _, errors = process.communicate(timeout=EXIT_WITHIN_S)
    assert process.returncode == 5
    assert len(errors.splitlines()) == 1, errors


async def test_app_run_raises_and_the_process_fails(store: SqliteTestStore, tmp_path: Path) -> None:
    with worker(tmp_path, store, "program") as process:
        await wait_for_worker(store, process)
        delete(store)
        _, errors = process.communicate(timeout=EXIT_WITHIN_S)
    assert process.returncode == 1
    assert "storage_replaced" in errors.splitlines()[-1]


async def test_embedded_worker_logs_one_error(store: SqliteTestStore, caplog: pytest.LogCaptureFixture) -> None:
    app = App(store.url, options={"durable": False})
    starts = []

    async def work() -> None:
        starts.append(1)

    @app.task
    async def steps() -> None:
        while True:
            await step(work)
            await asyncio.sleep(0.01)

    async with app, app.worker(lease=1):
        handle = await steps.submit()
        await wait_until(lambda: len(starts) >= 3)
        replace(store)
        with pytest.raises(Unavailable) as lost:
            await handle
        assert lost.value.code == "storage_replaced"
        await asyncio.sleep(1.5)
        began = len(starts)
        await asyncio.sleep(0.2)
        assert len(starts) == began
    [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert (record.levelno, record.name) == (logging.ERROR, "flowfabric.worker")


@contextmanager
def worker(folder: Path, store: SqliteTestStore, module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    (folder / "program.py").write_text(PROGRAM.format(path=store.url))
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments], cwd=folder, text=True, stderr=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def declared(store: SqliteTestStore) -> App:
    app = App(store.url, options={"durable": False})

    @app.task
    async def nap(seconds: float) -> str:
        return "rested"

    return app


async def wait_for_worker(store: SqliteTestStore, process: subprocess.Popen[str]) -> None:
    """Wait until the worker is registered, and both of its engines have opened the store."""
    lock_file = store.path.with_name("test.db-checkpoint")
    await wait_until(lambda: count(store, "SELECT instance FROM ff.worker") == 1)
    await wait_until(lambda: opened_files(process).count(str(lock_file)) == 2)
    with lock_file.open() as file:
        await wait_until(lambda: try_lock(file))


def opened_files(process: subprocess.Popen[str]) -> list[str]:
    folder = Path(f"/proc/{process.pid}/fd")
    return [str(entry.readlink()) for entry in folder.iterdir()]


def try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def wait_until(holds: object) -> None:
    ends = time.monotonic() + EXIT_WITHIN_S
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < ends
        await asyncio.sleep(0.05)


def count(store: SqliteTestStore, sql: str) -> int:
    if not store.path.exists():
        return 0
    try:
        with closing(store.raw_connection()) as connection:
            return len(connection.execute(sql.replace("ff.", "ff_")).fetchall())
    except sqlite3.Error:
        return 0
