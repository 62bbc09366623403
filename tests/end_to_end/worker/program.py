"""A process that works until it is told to end; it writes a line for whatever its test waits for.

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
from flowfabric.worker import Worker, new_event_loop, run_until_signalled
from tests.end_to_end.worker.performers import Body, Performer, Told, echo, until_drained, until_lost


async def blocks(told: Told) -> None:
    """Never lets the event loop go on."""
    while True:
        time.sleep(0.01)  # noqa: ASYNC251 - that is the point


BODIES: dict[str, Body] = {"echo": echo, "until drained": until_drained, "deaf": until_lost, "blocks": blocks}


class Saying(Performer):
    """Says what it begins."""

    def begin(self, engine: Any, lease: Any) -> Told:
        say(f"begins {lease.execution_id} {lease.attempt_index}")
        return super().begin(engine, lease)


def say(line: str) -> None:
    """One line for the test, at once."""
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


class Lines(logging.Handler):
    """Log messages as lines."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"log {record.getMessage().splitlines()[0]}")


async def work(order: dict[str, Any]) -> None:
    """Works as ordered until a signal comes."""
    url, options = order["url"], order["options"]
    async with connect(url, **options) as engine:
        worker = Worker(
            engine, Saying(BODIES[order["body"]]), lease_ttl=order["lease_ttl"], grace=order["grace"],
            renewal=lambda: connect(url, notify=False, **options),
        )  # fmt: skip
        await run_until_signalled(worker)
    say("ended")


if __name__ == "__main__":
    log = logging.getLogger("flowfabric.worker")
    log.addHandler(Lines())
    log.setLevel(logging.INFO)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(work(json.loads(sys.argv[1])))
