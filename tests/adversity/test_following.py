"""`flowfabric events --follow`, the real command: it outlives its server and whoever writes, and shows everything."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Literal
from uuid import UUID

import pytest

from flowfabric.engine import Engine, Unavailable
from tests.children import children
from tests.concurrency.outbox import Ledger, written
from tests.end_to_end.cli.shell import command, environment, words_for
from tests.postgres_server import PostgresServer
from tests.scenarios import leased
from tests.stores import PostgresTestStore, SqliteTestStore, TestStore, opened

SOME = 40


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_nothing_is_missed_through_a_restart_of_the_server(
    spare_server: PostgresServer, spare: PostgresTestStore, mode: Literal["fast", "immediate"]
) -> None:
    async with opened(spare, durable=True) as engine, followed(spare) as shown:
        writing = asyncio.create_task(write_until_it_stops(engine))
        await until_more(shown, SOME)
        await asyncio.to_thread(spare_server.stop, mode)
        await writing
        await asyncio.to_thread(spare_server.start)
        before, _ = await written(spare)
        for _ in range(SOME):
            await write(engine)
        await show_everything(shown, spare)
    assert len(shown.seen) == len(before) + 2 * SOME


async def test_nothing_is_missed_when_the_writer_is_killed_and_another_one_goes_on(tmp_path: Path) -> None:
    store = SqliteTestStore(tmp_path)
    await (await store.connecting()).close()
    async with followed(store) as shown:
        for name in ("killed", "heir"):
            with children("tests.adversity.worker_child", [store.url, name, "10000", "30s"]) as [writer]:
                writer.tell("go")
                await until_more(shown, SOME)
                writer.kill()
        await show_everything(shown, store)


async def write(engine: Engine) -> None:
    """An execution that is claimed and completed: two events."""
    await engine.leases.complete((await leased(engine)).fence)


async def write_until_it_stops(engine: Engine) -> None:
    with suppress(Unavailable):
        while True:
            await write(engine)


@asynccontextmanager
async def followed(store: TestStore) -> AsyncIterator[Ledger]:
    """What the command shows of a store while the block lasts."""
    words = command(*words_for(store), "events", "--follow", "--from", "beginning", "--json")
    process = await asyncio.create_subprocess_exec(*words, stdout=PIPE, stderr=DEVNULL, env=environment())
    shown = Ledger("shown")
    reading = asyncio.create_task(read(process, shown))
    try:
        yield shown
        assert process.returncode is None, "it goes on until it is told not to"
    finally:
        if process.returncode is None:
            process.kill()
        await reading
        await process.wait()


async def read(process: asyncio.subprocess.Process, shown: Ledger) -> None:
    assert process.stdout is not None, "asked for as a pipe"
    async for line in process.stdout:
        event = json.loads(line)
        shown.seen.append((UUID(event["execution_id"]), event["version"]))


async def until_more(shown: Ledger, number: int) -> None:
    """Waits until so many more events are shown."""
    wanted = len(shown.seen) + number
    async with asyncio.timeout(60):
        while len(shown.seen) < wanted:  # noqa: ASYNC110 - it comes from another process
            await asyncio.sleep(0.02)


async def show_everything(shown: Ledger, store: TestStore) -> None:
    """Waits until all that is written is shown, and demands that it was shown once and in order."""
    every, _ = await written(store)
    await until_more(shown, len(every) - len(shown.seen))
    assert (shown.missed(every), shown.doubled(), shown.disorder()) == (0, 0, 0)
    assert set(shown.seen) == every
