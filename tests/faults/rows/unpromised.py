"""Measurements of what is not promised, because no lease can prevent it.

A plain function runs in a thread, which cannot be stopped. If its worker loses the lease, the function continues to its
end, while another worker runs it again. A step whose worker dies between the effect and the record runs again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from flowfabric import App, current, step
from flowfabric.engine import Engine, StoreOptions
from flowfabric.runtime.run import TaskRunner
from flowfabric.runtime.threads import ThreadPools
from flowfabric.worker import Worker
from tests.faults import stepping_worker
from tests.faults.fork_server import fork_server
from tests.faults.kit.ledgers import Run
from tests.faults.kit.link import Link
from tests.faults.rows.failovers import run_failovers
from tests.faults.rows.row import BOTH, Backend, Trial
from tests.stores import PostgresTestStore, opened

FUNCTION_S = 6.0
LEASE_S = 2.0
STARTS_WITHIN_S = 2.0
PATIENCE_S = 30.0
STEPPERS = 4
KILL_EVERY_S = 0.15
BACKLOG = 60
UNFINISHED = "SELECT COUNT(*) AS number FROM ff.execution WHERE ended_at IS NULL"


@dataclass(frozen=True)
class Measured:
    """The values of one measurement, and a short text that describes them."""

    values: list[float]
    summary: str


@dataclass(frozen=True)
class Measurement:
    """Something that is not promised. `size` is the number of faults in a full run, `short_size` in a short one."""

    name: str
    unit: str
    measure: Callable[[Trial], Coroutine[Any, Any, Measured]]
    size: int
    short_size: int
    backends: tuple[Backend, ...] = BOTH


class _Overruns:
    """When the first run of each function ended, and when another worker started it again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.started: set[UUID] = set()
        self.taken_over_at: dict[UUID, float] = {}
        self.ended_at: dict[UUID, float] = {}

    def run(self) -> None:
        """Take a while in the first run of an execution, and return immediately in later runs."""
        id_ = current().execution_id
        with self._lock:
            if id_ in self.started:
                self.taken_over_at.setdefault(id_, time.monotonic())
                return
            self.started.add(id_)
        time.sleep(FUNCTION_S)
        self.ended_at[id_] = time.monotonic()

    def make_app(self) -> App:
        """Return an app with the task `job`, which calls the function in a step."""
        app = App(":memory:")

        @app.task(name="job")
        async def job() -> None:
            await step(self.run)

        return app


async def measure_overruns(trial: Trial) -> Measured:
    """Cut a worker off while its functions run, and return how long they continue after another worker took over."""
    store, link, overruns, chance = trial.new_store(), Link(), _Overruns(), trial.random()
    lost, other = ThreadPools(trial.faults), ThreadPools(trial.faults)
    async with opened(store) as client, client.reconcilers.run_in_background(), link.opened(store.connecting()) as cut:
        worker = _worker(cut, overruns, lost)
        async with worker:
            for _ in range(trial.faults):
                await client.executions.submit("job", b"{}")
                await asyncio.sleep(chance.uniform(0, 2 * STARTS_WITHIN_S / trial.faults))
            await _becomes(lambda: len(overruns.started) == trial.faults)
            link.is_down = True
            async with _worker(client, overruns, other):
                await _becomes(lambda: len(overruns.ended_at) == len(overruns.taken_over_at) == trial.faults)
            link.heal()
    values = sorted(max(0.0, overruns.ended_at[id_] - at) for id_, at in overruns.taken_over_at.items())
    spread = f"p50 {values[len(values) // 2]:.1f} s, max {values[-1]:.1f} s"
    return Measured(values, f"{spread} ({len(values)} takeovers, the function takes {FUNCTION_S:g} s)")


def _worker(engine: Engine, overruns: _Overruns, threads: ThreadPools) -> Worker:
    runner = TaskRunner(overruns.make_app(), threads)
    concurrency = threads.steps.max_threads
    return Worker(engine, runner, concurrency=concurrency, lease_ttl=LEASE_S, reconcile=False, threads=threads, grace=0)


async def measure_repeated_effects(trial: Trial) -> Measured:
    """Kill worker processes at random, and return the number of effects of steps that were made again."""
    store, run, chance = trial.new_store(), Run(trial.folder / "steps"), trial.random()
    options: StoreOptions = {"durable": False}
    if isinstance(store, PostgresTestStore):
        options |= {"schema": store.schema, "pool_size": 3}
    app, job = stepping_worker.make_task(store.url, options)
    order = {"program": "tests.faults.stepping_worker", "folder": run.folder, "url": store.url, "options": options}

    async def unfinished() -> int:
        return int((await store.query(UNFINISHED))[0]["number"])

    with fork_server() as forks:
        async with app:
            await app.engine()
            pids = [forks.spawn(**order) for _ in range(STEPPERS)]
            for _ in range(trial.faults):
                if await unfinished() < BACKLOG // 2:
                    _ = await app.submit_many(job.call() for _ in range(BACKLOG // 2))
                await asyncio.sleep(chance.expovariate(1 / KILL_EVERY_S))
                place = chance.randrange(STEPPERS)
                forks.kill(pids[place])
                pids[place] = forks.spawn(**order)
            stop_at = time.monotonic() + PATIENCE_S
            while await unfinished() and time.monotonic() < stop_at:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    effects = Counter((line["execution"], line["step"]) for line in run.witnessed())
    repeated = sum(count - 1 for count in effects.values())
    rate = 1000 * repeated / trial.faults
    workload = f"{stepping_worker.CONCURRENCY} steps of {2000 * stepping_worker.HALF_STEP_S:g} ms at a time per worker"
    return Measured([rate], f"{rate:,.0f} ({repeated} in {trial.faults} kills, {workload})")


async def measure_lost_executions(trial: Trial) -> Measured:
    """Fail over to an asynchronous standby, and return how many acknowledged executions it did not have."""
    report = await run_failovers(trial.faults)
    share = (
        f"{report.lost_by_failover} of {report.acknowledged_before} that were acknowledged after the standby stopped"
    )
    return Measured([report.lost_by_failover], f"{share} receiving, in {trial.faults} failovers")


async def _becomes(condition: Callable[[], bool]) -> None:
    stop_at = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > stop_at:
            raise TimeoutError("the workers did not run all functions")
        await asyncio.sleep(0.01)


MEASUREMENTS = (
    Measurement(
        "A plain function continues after a takeover, with a lease of 2 s", "s", measure_overruns, size=40, short_size=4
    ),
    Measurement(
        "Effects of unrecorded steps repeated per 1,000 kills",
        "effects",
        measure_repeated_effects,
        size=150,
        short_size=10,
    ),
    Measurement(
        "Acknowledged executions lost because a standby had not received them",
        "executions",
        measure_lost_executions,
        size=10,
        short_size=1,
        backends=("postgres",),
    ),
)
