"""Old and new worker processes run at the same time, and the old ones stop while executions wait."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from flowfabric.engine import Engine, State
from tests.faults.fork_server import ForkServer, fork_server
from tests.faults.kit.deployment import make_app
from tests.faults.rows.row import Row, Tally, Trial
from tests.stores import PostgresTestStore, TestStore, opened

EXECUTIONS = 20
AT_A_TIME = 4
PATIENCE_S = 60.0
OLD_EFFECTS = frozenset({"check", "pack", "ship", "pay"})
NEW_EFFECTS = frozenset({"label", "audit", "thank"})


@dataclass
class Deployment:
    """One deployment: its lane, its ledger and its worker processes."""

    store: TestStore
    folder: Path
    forks: ForkServer
    lane: str
    pids: dict[str, int] = field(default_factory=dict)

    @property
    def ledger(self) -> Path:
        """The file in which the steps write their effects."""
        return self.folder / f"{self.lane}.ledger"

    @property
    def options(self) -> Any:
        """The options of the store."""
        schema = {"schema": self.store.schema} if isinstance(self.store, PostgresTestStore) else {}
        return {"durable": False, **schema}

    async def start(self, version: str) -> None:
        """Start a worker process with this version of the code, and wait until it works."""
        ready = self.folder / f"{self.lane}-{version}.ready"
        self.pids[version] = self.forks.spawn(
            program="tests.faults.kit.deployment",
            url=self.store.url,
            options=self.options,
            version=version,
            lane=self.lane,
            ledger=str(self.ledger),
            ready=str(ready),
        )
        async with asyncio.timeout(PATIENCE_S):
            while not ready.exists():  # noqa: ASYNC110 - the flag is a file
                await asyncio.sleep(0.01)

    def stop(self, version: str) -> None:
        """Let a worker process drain."""
        os.kill(self.pids[version], signal.SIGTERM)

    async def submit(self, engine: Engine, numbers: range) -> dict[UUID, int]:
        """Submit executions, and return their numbers by id."""
        task = make_app("never-opened.db", None, "client")[1].options(lane=self.lane)
        submissions = [task.call(number).submission for number in numbers]
        results = await engine.executions.submit_many(submissions)
        return {result.id: number for result, number in zip(results, numbers, strict=True)}  # type: ignore[union-attr]


async def deploy(trial: Trial) -> Tally:
    """Make deployments, several at a time, and check the executions that ran during each of them."""
    tally, store, limit = Tally(), trial.new_store(), asyncio.Semaphore(AT_A_TIME)
    folder = trial.folder / "ledgers"
    folder.mkdir(parents=True, exist_ok=True)
    with fork_server() as forks:
        async with opened(store) as engine:

            async def one(deployment: Deployment) -> None:
                async with limit:
                    await _deploy(engine, deployment, tally)

            deployments = [Deployment(store, folder, forks, f"deployment-{number}") for number in range(trial.faults)]
            await asyncio.gather(*map(one, deployments))
            for pid in [pid for deployment in deployments for pid in deployment.pids.values()]:
                await asyncio.to_thread(forks.wait, pid)
            releases = await store.query("SELECT COUNT(*) AS number FROM ff.event WHERE reason = 'diverged'")
    tally.events = releases[0]["number"]
    if not tally.events:
        tally.wrong.append("no old worker met an execution of the new code, so nothing was tested")
    return tally


async def _deploy(engine: Engine, deployment: Deployment, tally: Tally) -> None:
    await deployment.start("old")
    numbers = await deployment.submit(engine, range(EXECUTIONS // 2))
    await deployment.start("new")
    numbers |= await deployment.submit(engine, range(EXECUTIONS // 2, EXECUTIONS))
    for id_, number in numbers.items():
        await _check(engine, id_, f"{deployment.lane} {number}", tally)
        if number == EXECUTIONS // 2:
            deployment.stop("old")
    deployment.stop("new")
    tally.injected += 1
    tally.executions += len(numbers)
    counts = Counter(deployment.ledger.read_text().splitlines())
    tally.doubled += [f"{deployment.lane}: {effect} {number} times" for effect, number in counts.items() if number > 1]
    for number in range(EXECUTIONS):
        missing = [effect for effect in sorted(OLD_EFFECTS) if f"{number} {effect}" not in counts]
        tally.lost += [f"{deployment.lane}: {number} has no effect {effect}" for effect in missing]


async def _check(engine: Engine, id_: UUID, name: str, tally: Tally) -> None:
    ended = await engine.executions.wait(id_, timeout=PATIENCE_S)
    if ended is None:
        explanation = await engine.operator.explain(id_)
        tally.stuck.append(f"{name}: {explanation}")
    elif ended.state is not State.COMPLETED:
        tally.wrong.append(f"{name}: ended {ended.state}: {ended.failure}")


ROWS = (
    Row(
        "rolling deployment",
        "Old and new worker processes run at the same time, and the new code has four new calls behind `changed`",
        deploy,
        minimum=100,
        short_minimum=2,
    ),
)
