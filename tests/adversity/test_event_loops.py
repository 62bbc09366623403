"""Engines and workers on many event loops. A loop that is closed under them leaves neither threads nor open files."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tests.faults.kit.processes import run_program
from tests.faults.process_programs import engine_threads, open_files, wait_until
from tests.stores import TestStore, opened

LOOPS = 4
# Opening a store takes about as long as the longest of these pauses.
PAUSES_S = (0.0, 0.001, 0.003, 0.01, 0.03)


async def test_event_loop_closed_under_an_engine_or_worker_leaves_no_thread_and_no_open_file(store: TestStore) -> None:
    report, _ = await run_program(store, "loops", LOOPS)
    assert report["results"] == [2 * n for n in range(LOOPS + 1)]
    assert report["of_worker"] > 0
    assert report["threads"] == []
    before, after = report["files"]
    assert after <= before + 2, report["open"]


async def test_connect_that_is_cancelled_leaves_no_thread_and_no_open_file(store: TestStore) -> None:
    async with opened(store):
        pass
    before = len(open_files())
    for pause_s in PAUSES_S:
        connecting = asyncio.ensure_future(store.connecting()._open())
        await asyncio.sleep(pause_s)
        connecting.cancel()
        with suppress(asyncio.CancelledError):
            engine = await connecting
            await engine.close()
    await asyncio.to_thread(wait_until, lambda: not engine_threads() and len(open_files()) <= before)
    assert engine_threads() == []
    assert len(open_files()) <= before
