"""The command `flowfabric events --follow` shows every event, even if its server restarts or a writer is killed."""

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
from tests.concurrency.outbox import Ledger, read_stored_events
from tests.end_to_end.cli.shell import command_line, process_environment, store_options
from tests.postgres_server import PostgresServer
from tests.scenarios import leased
from tests.stores import PostgresTestStore, SqliteTestStore, TestStore, opened

SOME = 40


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_follow_misses_no_event_through_a_server_restart(
    spare_server: PostgresServer, spare: PostgresTestStore, mode: Literal["fast", "immediate"]
) -> None:
    async with opened(spare, durable=True) as engine, followed(spare) as shown:
        writing = asyncio.create_task(write_until_stopped(engine))
        await wait_for_more(shown, SOME)
        await asyncio.to_thread(spare_server.stop, mode)
        await writing
        await asyncio.to_thread(spare_server.start)
        before, _ = await read_stored_events(spare)
        for _ in range(SOME):
            await write(engine)
        await show_everything(shown, spare)
    assert len(shown.seen) == len(before) + 2 * SOME


async def test_follow_misses_no_event_when_the_writer_is_killed_and_replaced(tmp_path: Path) -> None:
    store = SqliteTestStore(tmp_path)
    await (await store.connecting()).close()
    async with followed(store) as shown:
        for name in ("killed", "heir"):
            with children("tests.adversity.worker_child", [store.url, name, "10000", "30s"]) as [writer]:
                writer.send_line("go")
                await wait_for_more(shown, SOME)
                writer.kill()
        await show_everything(shown, store)


async def write(engine: Engine) -> None:
    """Submit, claim and complete an execution, which writes two events."""
    await engine.leases.complete((await leased(engine)).fence)


async def write_until_stopped(engine: Engine) -> None:
    with suppress(Unavailable):
        while True:
            await write(engine)


@asynccontextmanager
async def followed(store: TestStore) -> AsyncIterator[Ledger]:
    """Yield the output of the command on a store."""
    words = command_line(*store_options(store), "events", "--follow", "--from", "beginning", "--json")
    process = await asyncio.create_subprocess_exec(*words, stdout=PIPE, stderr=DEVNULL, env=process_environment())
    shown = Ledger("shown")
    reading = asyncio.create_task(read(process, shown))
    try:
        yield shown
        assert process.returncode is None, "the command runs until it is interrupted"
    finally:
        if process.returncode is None:
            process.kill()
        await reading
        await process.wait()


async def read(process: asyncio.subprocess.Process, shown: Ledger) -> None:
    assert process.stdout is not None, "the process was started with a pipe"
    async for line in process.stdout:
        event = json.loads(line)
        shown.seen.append((UUID(event["execution_id"]), event["version"]))


async def wait_for_more(shown: Ledger, number: int) -> None:
    """Wait until the given number of further events are shown."""
    expected = len(shown.seen) + number
    async with asyncio.timeout(60):
        while len(shown.seen) < expected:  # noqa: ASYNC110 - it comes from another process
            await asyncio.sleep(0.02)


async def show_everything(shown: Ledger, store: TestStore) -> None:
    """Wait until every written event is shown, and assert that each event was shown once and in order."""
    every, _ = await read_stored_events(store)
    await wait_for_more(shown, len(every) - len(shown.seen))
    assert (shown.missed(every), shown.repeated(), shown.disorder()) == (0, 0, 0)
    assert set(shown.seen) == every
