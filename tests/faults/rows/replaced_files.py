"""The file of a store in use is deleted, moved, replaced or copied, or its log is deleted.

Child processes submit to the store and write ledgers. After the fault, a new process opens the path while the former
processes still run. Then all of them are killed. Every submit that began after the fault and was acknowledged must be
in the file that the next process opens, and the file at the path must be sound.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from flowfabric.engine import FlowFabricError, connect
from tests.faults.fork_server import ForkServer, fork_server
from tests.faults.rows.row import Row, Tally, Trial

CONCURRENT = 3
ACKNOWLEDGED_BEFORE = 8
COPIES_PER_STORE = 20
OVERLAP_S = 0.12
START_WITHIN_S = 30.0
NOTICE_WITHIN_S = 10.0
SMALL, LARGE, HUGE = 200, 30_000, 150_000
SUFFIXES = ("", "-wal", "-shm")


@dataclass
class Store:
    """A store in its own folder, and the ledgers of the processes that use it."""

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / "test.db"

    def file(self, suffix: str) -> Path:
        return self.folder / f"test.db{suffix}"

    def ledger(self, name: str) -> list[list[str]]:
        path = self.folder / f"ledger-{name}"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split() for line in lines if len(line.split()) == 3]

    def acknowledged(self, name: str, after: float = 0.0) -> list[str]:
        return [id_ for word, id_, started in self.ledger(name) if word == "ack" and float(started) > after]

    def errors(self, name: str) -> set[str]:
        return {code for word, code, _ in self.ledger(name) if word == "error"}


def _delete(store: Store) -> None:
    store.path.unlink()


def _delete_all(store: Store) -> None:
    for suffix in SUFFIXES:
        store.file(suffix).unlink(missing_ok=True)


def _move(store: Store) -> None:
    store.path.rename(store.folder / "moved.db")


def _move_all(store: Store) -> None:
    for suffix in SUFFIXES:
        if store.file(suffix).exists():
            store.file(suffix).rename(store.folder / f"moved.db{suffix}")


def _replace_by_old_backup(store: Store) -> None:
    (store.folder / "backup.db").rename(store.path)


def _replace_by_new_backup(store: Store) -> None:
    with closing(sqlite3.connect(store.path)) as source, closing(sqlite3.connect(store.folder / "new.db")) as target:
        source.backup(target)
    (store.folder / "new.db").rename(store.path)


def _delete_log(store: Store) -> None:
    store.file("-wal").unlink(missing_ok=True)


def _delete_log_and_index(store: Store) -> None:
    store.file("-wal").unlink(missing_ok=True)
    store.file("-shm").unlink(missing_ok=True)


def _delete_index(store: Store) -> None:
    store.file("-shm").unlink(missing_ok=True)


Fault = Callable[[Store], None]
FILE_FAULTS: tuple[Fault, ...] = (
    _delete, _delete_all, _move, _move_all, _replace_by_old_backup, _replace_by_new_backup
)  # fmt: skip
LOG_FAULTS: tuple[Fault, ...] = (_delete_log, _delete_log_and_index, _delete_index)


async def replace_files(trial: Trial) -> Tally:
    """Delete, move or replace the file."""
    return await _run(trial, FILE_FAULTS)


async def delete_logs(trial: Trial) -> Tally:
    """Delete the log, the index of the log, or both."""
    return await _run(trial, LOG_FAULTS)


async def _run(trial: Trial, faults: tuple[Fault, ...]) -> Tally:
    tally, chance = Tally(), trial.random("faults")
    kinds = [faults[number % len(faults)] for number in range(trial.faults)]
    chance.shuffle(kinds)
    slots = asyncio.Semaphore(CONCURRENT)
    with fork_server() as server:

        async def inject(number: int, fault: Fault) -> None:
            async with slots:
                store = Store(trial.folder / f"{fault.__name__}-{number}")
                tally.add(await _inject(server, store, fault, random.Random(f"{trial.seed} {number}")))

        await asyncio.gather(*(inject(number, fault) for number, fault in enumerate(kinds)))
    return tally


async def _inject(server: ForkServer, store: Store, fault: Fault, chance: random.Random) -> Tally:
    tally = Tally(injected=1)
    await _prepare(store)
    size = chance.choice((SMALL, LARGE))
    pids = [_spawn(server, store, name, size) for name in ("old", "older")]
    try:
        if not await _wait(lambda: len(store.acknowledged("old")) >= ACKNOWLEDGED_BEFORE, START_WITHIN_S):
            tally.stuck.append(f"{store.folder.name}: the first process acknowledged too little: {store.errors('old')}")
        await asyncio.sleep(chance.random() * 0.05)
        fault(store)
        done = time.monotonic()
        is_damaged = fault in LOG_FAULTS and _is_damaged(store.path)
        pids.append(_spawn(server, store, "new", size))
        noticed = await _wait(lambda: "storage_replaced" in store.errors("old"), NOTICE_WITHIN_S)
        if not noticed:
            tally.stuck.append(f"{store.folder.name}: the former process did not notice it: {store.errors('old')}")
        tally.recoveries_s.append(time.monotonic() - done)
        await asyncio.sleep(OVERLAP_S)
    finally:
        for pid in pids:
            server.kill(pid)
    await _judge(store, fault, done, tally, is_damaged=is_damaged)
    return tally


def _is_damaged(path: Path) -> bool:
    """Return whether the fault itself damaged the file, which needed its log after an unfinished checkpoint.

    Then no process may accept the file.
    """
    copy = path.with_name("after-the-fault.db")
    shutil.copyfile(path, copy)
    return bool(_check_alone(copy))


async def _prepare(store: Store) -> None:
    """Create the store, close it, and keep a backup, so that the log begins after the backup."""
    store.folder.mkdir()
    async with connect(str(store.path), durable=False) as engine:
        await engine.executions.submit("first", b"x")
    shutil.copy(store.path, store.folder / "backup.db")
    async with connect(str(store.path), durable=False) as engine:
        await engine.executions.submit("second", b"x" * LARGE)


def _spawn(server: ForkServer, store: Store, name: str, payload_bytes: int) -> int:
    ledger = store.folder / f"ledger-{name}"
    return server.spawn(
        program="tests.faults.kit.submitter", url=store.path, ledger=ledger, payload_bytes=payload_bytes
    )


async def _wait(holds: Callable[[], bool], within_s: float) -> bool:
    ends = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > ends:
            return False
        await asyncio.sleep(0.01)
    return True


async def _judge(store: Store, fault: Fault, done: float, tally: Tally, *, is_damaged: bool) -> None:
    """Compare the ledgers with the file that the next process opens."""
    name = store.folder.name
    names = ("old", "older", "new")
    tally.executions += sum(len(store.acknowledged(ledger)) for ledger in names)
    if not is_damaged and store.path.exists() and (problems := _check_alone(store.path)):
        tally.wrong.append(f"{name}: the file at the path is damaged: {problems[0]}")
    expected = {id_ for ledger in names for id_ in store.acknowledged(ledger, after=done)}
    try:
        async with connect(str(store.path), durable=False) as engine:
            problems = await engine.find_damage()
    except FlowFabricError as error:
        if expected:
            tally.lost.append(f"{name}: {len(expected)} acknowledged submits, and then {error.code}")
    else:
        if problems:
            tally.wrong.append(f"{name}: the store is damaged: {problems[0]}")
        missing = expected - _stored_ids(store.path)
        if missing:
            tally.lost.append(f"{name}: {len(missing)} of {len(expected)} acknowledged submits")
    if fault is _move:
        await _judge_moved_back(store, tally)


async def _judge_moved_back(store: Store, tally: Tally) -> None:
    """Move the file back to its log. Then nothing that it acknowledged may be missing.

    If the log was empty because of a checkpoint, a process has created a new store at the path after the fault.
    """
    acknowledged = {id_ for ledger in ("old", "older", "new") for id_ in store.acknowledged(ledger)}
    expected = acknowledged - (_stored_ids(store.path) if store.path.exists() else set())
    for suffix in SUFFIXES if store.path.exists() else ():
        store.file(suffix).unlink(missing_ok=True)
    (store.folder / "moved.db").rename(store.path)
    try:
        async with connect(str(store.path), durable=False) as engine:
            problems = await engine.find_damage()
    except FlowFabricError as error:
        tally.lost.append(f"{store.folder.name}: the file that was moved back is refused: {error.code}")
        return
    missing = expected - _stored_ids(store.path)
    if missing or problems:
        tally.lost.append(f"{store.folder.name}: {len(missing)} submits of the file that was moved back; {problems}")


def _check_alone(path: Path) -> list[str]:
    """Return the problems that SQLite finds in the file without its log. An unfinished checkpoint is not a problem."""
    with closing(sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)) as connection:
        try:
            rows = connection.execute("PRAGMA integrity_check").fetchall()
        except sqlite3.DatabaseError as error:
            return [str(error)]
    return [text for [text] in rows if text != "ok"]


def _stored_ids(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as connection:
        return {id_ for [id_] in connection.execute("SELECT id FROM ff_execution")}


async def copy_files(trial: Trial) -> Tally:
    """Copy the files of a store in use one by one, in any order and also partly, and open the copies."""
    tally, chance = Tally(), trial.random("copies")
    with fork_server() as server:
        while tally.injected < trial.faults:
            # A store grows quickly, so each one is copied only a few times.
            store = Store(trial.folder / f"original-{tally.injected}")
            number = min(COPIES_PER_STORE, trial.faults - tally.injected)
            await _copy_store(server, store, number, chance, tally)
            shutil.rmtree(store.folder)
    return tally


async def _copy_store(server: ForkServer, store: Store, number: int, chance: random.Random, tally: Tally) -> None:
    await _prepare(store)
    # Large payloads cause a checkpoint every few submits.
    pids = [_spawn(server, store, name, HUGE) for name in ("one", "two")]
    try:
        await _wait(lambda: len(store.acknowledged("two")) >= ACKNOWLEDGED_BEFORE, START_WITHIN_S)
        for _ in range(number):
            copy = Store(store.folder.with_name(f"copy-{tally.injected}"))
            await _copy_and_open(store, copy, chance, tally)
            shutil.rmtree(copy.folder)
    finally:
        for pid in pids:
            server.kill(pid)
    tally.executions += sum(len(store.acknowledged(name)) for name in ("one", "two"))


async def _copy_and_open(store: Store, copy: Store, chance: random.Random, tally: Tally) -> None:
    copy.folder.mkdir()
    suffixes = chance.choice((("",), ("", "-wal"), ("-wal", ""), ("-wal", "-shm", ""), ("-shm", "", "-wal")))
    for suffix in suffixes:
        if store.file(suffix).exists():
            await asyncio.to_thread(shutil.copyfile, store.file(suffix), copy.file(suffix))
        await asyncio.sleep(chance.random() * 0.2)
    tally.injected += 1
    acknowledged = {name: store.acknowledged(name) for name in ("one", "two")}
    try:
        async with connect(str(copy.path), durable=False):
            pass
    except FlowFabricError as error:
        if error.code not in ("storage_damaged", "storage_log_mismatch"):
            tally.wrong.append(f"{copy.folder.name} {suffixes}: {error}")
        return
    if problem := _find_hole(copy.path, acknowledged):
        tally.wrong.append(f"{copy.folder.name} {suffixes}: a damaged copy was accepted: {problem}")


def _find_hole(path: Path, acknowledged: dict[str, list[str]]) -> str | None:
    """Return what is wrong with a copy.

    Each process waits for an acknowledgement before its next submit. So a consistent copy has the first submits of each
    process, and none after one that is missing. Every earlier one is completed.
    """
    if problems := _check_alone(path):
        return problems[0]
    with closing(sqlite3.connect(path)) as connection:
        states = dict(connection.execute("SELECT id, state FROM ff_execution").fetchall())
        events = dict(
            connection.execute("SELECT execution_id, COUNT(*) FROM ff_event GROUP BY execution_id").fetchall()
        )
        results = {id_ for [id_] in connection.execute("SELECT execution_id FROM ff_attempt")}
    for name, ids in acknowledged.items():
        present = [id_ for id_ in ids if id_ in states]
        if present != ids[: len(present)]:
            return f"submits of process {name} are missing in the middle"
        for id_ in present[:-1]:
            if (states[id_], events.get(id_), id_ in results) != ("completed", 2, True):
                return f"an execution of process {name} is half there"
    return None


ROWS = (
    Row(
        name="replaced files",
        fault="The file of a store in use is deleted, moved or replaced, and all processes are killed",
        run=replace_files,
        minimum=200,
        short_minimum=6,
        backends=("sqlite",),
    ),
    Row(
        name="deleted logs",
        fault="The log of a store in use is deleted, and all processes are killed",
        run=delete_logs,
        minimum=60,
        short_minimum=3,
        backends=("sqlite",),
    ),
    Row(
        name="copies with cp",
        fault="The files of a store in use are copied one by one, and the copy is opened",
        run=copy_files,
        minimum=200,
        short_minimum=12,
        backends=("sqlite",),
    ),
)
