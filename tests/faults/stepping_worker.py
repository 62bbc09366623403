"""A worker process whose tasks make many short steps, each with an effect in its middle.

The effect is a line in the ledger of the process. A step that was killed after its effect and before its record makes
the effect again in the next run.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from flowfabric import App, Task, current, step
from flowfabric.engine import StoreOptions
from tests.faults.kit.ledgers import Ledger, Run

STEPS = 10
HALF_STEP_S = 0.005
CONCURRENCY = 4
LEASE_S = 1.0


def make_task(url: str, options: StoreOptions, ledger: Ledger | None = None) -> tuple[App, Task[[], None]]:
    """Return an app with the task, which writes its effects to the ledger."""
    app = App(url, options=options)

    async def work(number: int) -> int:
        await asyncio.sleep(HALF_STEP_S)
        assert ledger is not None, "only workers run the task"
        ledger.write("effect", execution=current().execution_id, step=number)
        await asyncio.sleep(HALF_STEP_S)
        return number

    async def job() -> None:
        """Make the steps."""
        for number in range(STEPS):
            await step.options(name="work", key=str(number))(work, number)

    return app, app.task(job)


def main(order: dict[str, Any]) -> None:
    """Run a worker until it is killed."""
    asyncio.run(_work(order))


async def _work(order: dict[str, Any]) -> None:
    ledger = Run(Path(order["folder"])).witness(f"stepper-{os.getpid()}")
    app, _ = make_task(order["url"], order["options"], ledger)
    async with app.worker(lease=LEASE_S, concurrency=CONCURRENCY) as worker:
        await worker.run()
