"""Create load, kill random workers, and wait until all work has ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar
from uuid import UUID, uuid4

from flowfabric.engine import Backoff, BackoffKind, Engine, Policy, Unavailable
from tests.faults.checker import Findings
from tests.faults.fork_server import ForkServer
from tests.faults.kit.ledgers import IN_STATEMENT, IN_TRANSACTION, Ledger, Run
from tests.faults.store_dump import Camera
from tests.faults.worker import WAITPOINT
from tests.stores import PostgresTestStore, TestStore

Answer = TypeVar("Answer")
LEASE_S = 2.0
PATIENCE_S = 2 * LEASE_S + 5
MOST_WAITING = 40
AIMED = 0.7
PLANS = ("plain", "plain", "steps", "retry", "rest", "slow", "wait", "wait")
POLICY = Policy(lease_ttl=LEASE_S, backoff=Backoff(kind=BackoffKind.FIXED, initial="50ms", jitter=False))
UNFINISHED = "SELECT COUNT(*) AS number FROM ff.execution WHERE ended_at IS NULL"


@dataclass(frozen=True)
class Kill:
    """The worker that was killed, the time of the kill, and the worker's flag at that time."""

    instance: str
    at: float
    flag: int


@dataclass
class Crew:
    """Worker processes on one store. Each process has a slot, and a killed process is replaced."""

    forks: ForkServer
    run: Run
    store: TestStore
    chance: random.Random = field(default_factory=random.Random)
    pids: dict[int, int] = field(default_factory=dict)
    kills: list[Kill] = field(default_factory=list)

    def hire(self, number: int) -> None:
        for slot in range(number):
            self.pids[slot] = self.spawn(slot)

    def spawn(self, slot: int, **order: Any) -> int:
        options: dict[str, Any] = {"durable": False}
        if isinstance(self.store, PostgresTestStore):
            options |= {"schema": self.store.schema, "pool_size": 3}
        basics = {"slot": slot, "folder": self.run.folder, "url": self.store.url, "options": options}
        return self.forks.spawn(**(basics | {"lease_s": LEASE_S} | order))

    def kill_for(self, seconds: float, pause_s: float, least: int = 0) -> None:
        """Kill random workers for the given time, mostly inside a transaction.

        If fewer than `least` were killed, continue for up to three times as long. On a busy machine, a short time is
        not enough to start a process.
        """
        flags, chance, began = self.run.flags(), self.chance, time.monotonic()
        most_s = max(3 * seconds, PATIENCE_S)
        while time.monotonic() < began + (seconds if len(self.kills) >= least else most_s):
            time.sleep(chance.expovariate(1 / pause_s))
            slot = self._aim(flags, chance) if chance.random() < AIMED else chance.choice(list(self.pids))
            pid = self.pids[slot]
            self.forks.kill(pid)
            self.kills.append(Kill(f"{slot}-{pid}", time.time(), flags[slot]))
            self.pids[slot] = self.spawn(slot)

    def _aim(self, flags: Any, chance: random.Random) -> int:
        """Return the slot of a worker that is inside a transaction.

        If no such worker appears within 50 ms, return any slot.
        """
        slots = list(self.pids)
        chance.shuffle(slots)
        ends = time.monotonic() + 0.05
        while time.monotonic() < ends:
            for slot in slots:
                if flags[slot] == IN_TRANSACTION:
                    return slot
        return slots[0]

    def dismiss(self) -> None:
        for pid in self.pids.values():
            self.forks.kill(pid)
        self.pids.clear()


class Load:
    """Submits work and writes the client ledger."""

    def __init__(self, engine: Engine, run: Run, camera: Camera, chance: random.Random | None = None) -> None:
        self._engine = engine
        self._camera = camera
        self._chance = chance or random.Random()
        self._ledger: Ledger = run.client()
        self.acknowledged = 0
        self.signals = set[UUID]()

    async def submit_until(self, stop: asyncio.Event) -> None:
        """Submit executions until stopped, but only while the backlog is small.

        Identify each by an id or a key, and submit some of them twice.
        """
        while not stop.is_set():
            [row] = await self._camera.rows(UNFINISHED)
            if row["number"] < MOST_WAITING:
                await asyncio.gather(*[self.submit(self._chance.choice(PLANS)) for _ in range(5)])
            await asyncio.sleep(0.02)

    async def reached(self, number: int) -> None:
        """Wait until the given number of submissions are acknowledged."""
        while self.acknowledged < number:  # noqa: ASYNC110 - one step may acknowledge several
            await asyncio.sleep(0.01)

    async def submit(self, plan: str) -> None:
        name, by_key = uuid4(), self._chance.random() < 0.3
        again = self._chance.random() < 0.2
        for _ in range(1 + again):
            self._ledger.write("asked", asked=name)
            options: dict[str, Any] = {"key": str(name)} if by_key else {"id": name}
            payload = json.dumps({"plan": plan}).encode()
            result = await retry_until_available(
                partial(self._engine.executions.submit, "job", payload, policy=POLICY, **options)
            )
            self._ledger.write("acknowledged", asked=name, execution=result.id)
        self.acknowledged += 1

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """Send each waiting execution its signal during the block."""
        task = asyncio.create_task(self._answer_all())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def _answer_all(self) -> None:
        while True:
            for suspension in await retry_until_available(lambda: self._engine.waitpoints.list_suspended(limit=100)):
                for _ in range(self._chance.choice((1, 1, 2))):
                    await self._answer(suspension.execution_id)
            await asyncio.sleep(0.02)

    async def _answer(self, execution_id: UUID) -> None:
        sent = await retry_until_available(lambda: self._engine.signals.approve(execution_id, WAITPOINT, suffix="once"))
        self._ledger.write("signalled", signal=sent.signal_id, execution=execution_id)
        self.signals.add(sent.signal_id)


async def retry_until_available(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Repeat a call while the store is unavailable and return its result."""
    for _ in range(200):
        try:
            return await call()
        except Unavailable:
            await asyncio.sleep(random.uniform(0, 0.1))
    raise RuntimeError("the store did not come back")


async def all_ended(camera: Camera, patience_s: float = PATIENCE_S) -> float:
    """Wait until every execution is terminal, up to a limit. Return how long this took."""
    began = time.monotonic()
    while (await camera.rows(UNFINISHED))[0]["number"] and time.monotonic() - began < patience_s:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return time.monotonic() - began


def recoveries(findings: Findings, kills: list[Kill]) -> list[float]:
    """Return, for every lease of a killed worker, the time until another worker leased the execution."""
    died = {kill.instance: kill.at for kill in kills}
    times = []
    for events in findings.events.values():
        lost_at: float | None = None
        for event in events:
            if event["name"] == "expired":
                lost_at = died.get(event["instance"])
            elif event["name"] == "acquired" and lost_at is not None:
                times.append(_seconds(event["at"]) - lost_at)
                lost_at = None
    return sorted(times)


def killed_inside(kills: list[Kill]) -> tuple[int, int]:
    """Return how many workers were killed inside a transaction, and how many during a write of a single statement."""
    flags = [kill.flag for kill in kills]
    return flags.count(IN_TRANSACTION), flags.count(IN_STATEMENT)


def spread(times: list[float]) -> str:
    if not times:
        return "none"
    p50, p99 = times[len(times) // 2], times[min(len(times) - 1, int(len(times) * 0.99))]
    return f"p50 {p50:.1f} s, p99 {p99:.1f} s, max {times[-1]:.1f} s"


def _seconds(at: Any) -> float:
    return at.astimezone(UTC).timestamp() if isinstance(at, datetime) else at / 1e6
