"""Run a worker until it receives a signal; write a line for every event that a test waits for.

python -m tests.end_to_end.worker.program '{"url": …, "options": {…}, "lease_ttl": …, "body": "echo"}'
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from typing import Any

from flowfabric.engine import connect
from flowfabric.runtime.runner import always_held
from flowfabric.worker import Worker, new_event_loop, run_until_signal
from tests.end_to_end.worker.scripted_runs import Body, ScriptedRun, ScriptedRunner, echo, until_drained, until_lost


async def block_loop(run: ScriptedRun) -> None:
    """Block the event loop forever."""
    while True:
        time.sleep(0.01)  # noqa: ASYNC251 - the test blocks the loop on purpose


BODIES: dict[str, Body] = {
    "echo": echo,
    "until drained": until_drained,
    "until lost": until_lost,
    "block loop": block_loop,
}


class ReportingRunner(ScriptedRunner):
    """A scripted runner that writes a line for every run that it begins."""

    def begin(self, engine: Any, lease: Any, is_held: Any = always_held) -> ScriptedRun:
        write_line(f"begins {lease.execution_id} {lease.attempt_index}")
        return super().begin(engine, lease, is_held)


def write_line(line: str) -> None:
    """Write one line for the test without buffering."""
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


class LineHandler(logging.Handler):
    """Writes log messages as lines."""

    def emit(self, record: logging.LogRecord) -> None:
        write_line(f"log {record.getMessage().splitlines()[0]}")


async def work(config: dict[str, Any]) -> None:
    """Run a worker with this configuration until a signal stops it."""
    url, options = config["url"], config["options"]
    async with connect(url, **options) as engine:
        worker = Worker(
            engine,
            ReportingRunner(BODIES[config["body"]]),
            lease_ttl=config["lease_ttl"],
            grace=config["grace"],
            open_renewal_engine=lambda: connect(url, notify=False, **options),
        )
        await run_until_signal(worker)
    write_line("ended")


if __name__ == "__main__":
    log = logging.getLogger("flowfabric.worker")
    log.addHandler(LineHandler())
    log.setLevel(logging.INFO)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(work(json.loads(sys.argv[1])))
