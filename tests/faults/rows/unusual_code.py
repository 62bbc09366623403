"""Workers run code that raises where nobody expects it. Every execution ends, in the way that the guides document."""

from __future__ import annotations

import asyncio
from typing import Any

from flowfabric import App, Handle
from flowfabric.engine import State
from tests.faults.kit.unusual_code import UNUSUAL, Unusual, register
from tests.faults.rows.row import Row, Tally, Trial
from tests.stores import PostgresTestStore

PATIENCE_S = 60.0


async def run_unusual_code(trial: Trial) -> Tally:
    """Run every kind of unusual code on one worker, and compare the ends with the table."""
    tally, store = Tally(), trial.new_store()
    options: Any = {"durable": False}
    if isinstance(store, PostgresTestStore):
        options["schema"] = store.schema
    app = App(store.url, options=options)
    cases = trial.random().sample(UNUSUAL, min(trial.faults, len(UNUSUAL)))
    tasks = [register(app, case) for case in cases]
    async with app, app.worker(concurrency=16):
        handles = [await task.submit() for task in tasks]
        await asyncio.gather(*(_check(case, handle, tally) for case, handle in zip(cases, handles, strict=True)))
    return tally


async def _check(case: Unusual, handle: Handle[Any], tally: Tally) -> None:
    engine = await handle.app.engine()
    ended = await engine.executions.wait(handle.id, timeout=PATIENCE_S)
    tally.injected += 1
    tally.executions += 1
    if ended is None:
        explanation = await engine.operator.explain(handle.id)
        tally.stuck.append(f"{case.name}: {explanation}")
    elif ended.state != State(case.end):
        tally.wrong.append(f"{case.name}: ended {ended.state} instead of {case.end}: {ended.failure}")


ROWS = (
    Row(
        "unusual code",
        f"Tasks do {len(UNUSUAL)} unusual things, such as raising an exception whose attributes raise",
        run_unusual_code,
        minimum=len(UNUSUAL),
        short_minimum=len(UNUSUAL),
    ),
)
