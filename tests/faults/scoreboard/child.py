"""Run one suite or measurement in its own process, and return its counts.

usage: python -m tests.faults.scoreboard.child NAME BACKEND FAULTS SEED
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.faults.rows import ROWS
from tests.faults.rows.row import Backend, Trial
from tests.faults.rows.unpromised import MEASUREMENTS
from tests.postgres_server import postgres_server

TIMEOUT_S = 900.0


class ChildFailed(Exception):
    """The process of a suite crashed, or did not end in time."""


async def run_child(name: str, backend: Backend, faults: int, seed: int) -> dict[str, Any]:
    """Run a suite or a measurement in a new process, and return its counts."""
    command = [sys.executable, "-m", "tests.faults.scoreboard.child", name, backend, str(faults), str(seed)]
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output, errors = await child.communicate()
    except TimeoutError:
        child.kill()
        await child.wait()
        raise ChildFailed(f"seed {seed}: the suite did not end within {TIMEOUT_S:g} s") from None
    if child.returncode != 0:
        raise ChildFailed(f"seed {seed}: {errors.decode(errors='replace').strip()[-2000:]}")
    counts: dict[str, Any] = json.loads(output.splitlines()[-1])
    return counts


def main(name: str, backend: Backend, faults: str, seed: str) -> None:
    """Run the suite or measurement of this name, and print its counts as the last line."""
    # A shell lets the programs that it starts in the background ignore SIGINT, and so do their children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    suites = {row.name: row.run for row in ROWS}
    measurements = {measurement.name: measurement.measure for measurement in MEASUREMENTS}
    run = (suites | measurements)[name]
    with tempfile.TemporaryDirectory() as folder, postgres_server() as server:
        counts: Any = asyncio.run(run(Trial(backend, int(faults), int(seed), Path(folder), server.dsn)))
    sys.stdout.write(f"\n{json.dumps(vars(counts))}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
