"""Engines and workers on many event loops. A loop that is closed under them leaves neither threads nor open files."""

from __future__ import annotations

from tests.faults.kit.processes import run_program
from tests.stores import TestStore

LOOPS = 4


async def test_event_loop_closed_under_an_engine_or_worker_leaves_no_thread_and_no_open_file(store: TestStore) -> None:
    report, _ = await run_program(store, "loops", LOOPS)
    assert report["results"] == [2 * n for n in range(LOOPS + 1)]
    assert report["of_worker"] > 0
    assert report["threads"] == []
    before, after = report["files"]
    assert after <= before + 2, report["open"]
