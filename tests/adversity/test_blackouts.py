"""A worker process that gets SIGTERM while the store does not respond exits within its grace period plus 5 s."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.children import ROOT
from tests.faults.blackout_worker import GRACE_S, make_tasks
from tests.faults.kit.blackout import blackout
from tests.faults.kit.ledgers import Run
from tests.stores import PostgresTestStore, SqliteTestStore, TestStore, opened

pytestmark = pytest.mark.alone

EXIT_S = 5.0
PATIENCE_S = 60.0


@pytest.mark.parametrize("entry", ["app.run", "command"])
async def test_worker_exits_in_time_if_it_gets_sigterm_while_the_store_does_not_respond(
    store: TestStore, tmp_path: Path, entry: str
) -> None:
    assert isinstance(store, PostgresTestStore | SqliteTestStore)
    run = Run(tmp_path / "run")
    with blackout(store) as dark:
        words = [entry, str(run.folder), dark.url, json.dumps(dark.options)]
        command = [sys.executable, "-m", "tests.faults.blackout_worker", *words]
        async with opened(store):
            tasks = make_tasks(store.url, {**dark.options})
            async with tasks.app:
                handles = [await task.submit(0) for task in tasks.all]
            with start(command) as process:
                try:
                    await wait_begun(run, len(handles))
                    dark.begin()
                    os.kill(process.pid, signal.SIGTERM)
                    began = time.monotonic()
                    _, log = await asyncio.to_thread(process.communicate, timeout=PATIENCE_S)
                    took_s = time.monotonic() - began
                finally:
                    process.kill()
        assert took_s <= GRACE_S + EXIT_S, log.decode()
        assert took_s >= GRACE_S
        assert process.returncode == 0, log.decode()


def start(command: list[str]) -> subprocess.Popen[bytes]:
    """Start a worker process."""
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)


async def wait_begun(run: Run, number: int) -> None:
    """Wait until so many tasks have begun."""
    async with asyncio.timeout(PATIENCE_S):
        while sum(line["what"] == "began" for line in run.witnessed()) < number:  # noqa: ASYNC110 - it reads a file
            await asyncio.sleep(0.02)
