"""The clock of the host or of the server jumps while tasks sleep, and while killed workers lose their leases.

Two kinds of tasks run in worker processes. A nap sleeps for a second. A holder keeps its lease until its worker is
killed and another worker has taken over. Both write the monotonic time, which does not jump.

A jump forward may pass the due time of a nap, which then ends early. If a server's clock goes back, naps that had begun
wait until the clock reaches their due time again, so they are not counted.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from flowfabric.engine import StoreOptions
from tests.faults.fork_server import ForkServer, fork_server
from tests.faults.kit.clock import HostClock, ServerClock, movable_clock
from tests.faults.kit.ledgers import Run
from tests.faults.rows.row import Row, Tally, Trial
from tests.faults.sleeping_worker import NAP_S, Tasks, make_tasks
from tests.stores import PostgresTestStore, TestStore

LEASE_S = 1.5
MAX_NAP_S = 3.0
EARLY_S = 0.1
WORKERS = 4
NAP_EVERY_S = 0.2
JUMP_EVERY_S = (0.3, 1.2)
SETTLE_S = 8.0
POLL_S = 0.02
MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86_400.0
STORED_TIMES = "SELECT execution_id, at FROM ff.event WHERE execution_id IS NOT NULL ORDER BY execution_id, version"


@dataclass(frozen=True)
class Jump:
    """A jump of the clock, and the monotonic time at which it happened."""

    at_s: float
    is_back: bool


@dataclass(frozen=True)
class Kill:
    """A killed worker, and the holder whose lease it held."""

    at_s: float
    pid: int
    number: int


@dataclass
class Storm:
    """The worker processes and everything that happens to them."""

    tasks: Tasks
    forks: ForkServer
    clock: HostClock | ServerClock
    run: Run
    chance: random.Random
    options: StoreOptions
    pids: list[int] = field(default_factory=list)
    jumps: list[Jump] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    naps: int = 0
    holders: int = 0

    def hire(self) -> None:
        """Start one worker process."""
        shared = str(self.clock.path) if isinstance(self.clock, HostClock) else None
        order: dict[str, Any] = {
            "program": "tests.faults.sleeping_worker", "folder": self.run.folder, "clock": shared,
            "url": self.clock.url, "options": self.options, "lease_s": LEASE_S,
        }  # fmt: skip
        self.pids.append(self.forks.spawn(**order))

    async def jump(self, number: int) -> None:
        """Move the clock this many times: half of the times further ahead than ever, otherwise back behind that."""
        ahead_s = 0.0
        offset_s = 0.0
        for _ in range(number):
            await asyncio.sleep(self.chance.uniform(*JUMP_EVERY_S))
            if self.chance.random() < 0.5:
                ahead_s = target_s = ahead_s + self.chance.uniform(MINUTE_S, HOUR_S)
            else:
                target_s = ahead_s - self.chance.uniform(MINUTE_S, self.chance.choice((HOUR_S, DAY_S)))
            await self.clock.move_to(target_s)
            self.jumps.append(Jump(time.monotonic(), target_s < offset_s))
            offset_s = target_s

    async def sleep(self, stop: asyncio.Event) -> None:
        """Start naps until stopped."""
        while not stop.is_set():
            _ = await self.tasks.nap.submit(self.naps)
            self.naps += 1
            await asyncio.sleep(NAP_EVERY_S)

    async def kill(self, stop: asyncio.Event) -> None:
        """Kill the worker of one holder after the other until stopped, and replace the worker."""
        while not stop.is_set():
            number = self.holders
            self.holders += 1
            handle = await self.tasks.hold.submit(number)
            taken = await self._await_owner(number, None)
            await asyncio.sleep(self.chance.uniform(0.0, 0.5))
            taken = self._owners(number)[-1] if taken is not None else None
            if taken is not None:
                self.pids.remove(taken["pid"])
                await asyncio.to_thread(self.forks.kill, taken["pid"])
                self.kills.append(Kill(time.monotonic(), taken["pid"], number))
                await asyncio.to_thread(self.hire)
                await self._await_owner(number, taken["pid"])
            (self.run.folder / f"release-{number}").touch()
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_S):
                    await handle

    def lines(self, what: str) -> list[dict[str, Any]]:
        """Return what all workers wrote about this, in order."""
        return sorted((line for line in self.run.witnessed() if line["what"] == what), key=lambda line: line["clock_s"])

    async def settle(self) -> None:
        """Wait until all naps have ended, up to a limit."""
        ends = time.monotonic() + SETTLE_S
        while len({line["number"] for line in self.lines("woke")}) < self.naps and time.monotonic() < ends:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S * 5)

    def _owners(self, number: int) -> list[dict[str, Any]]:
        return [line for line in self.lines("took") if line["number"] == number]

    async def _await_owner(self, number: int, instead_of: int | None) -> dict[str, Any] | None:
        """Return the newest line of a holder that this process did not write, or None if there is none in time."""
        ends = time.monotonic() + SETTLE_S
        while time.monotonic() < ends:
            lines = self._owners(number)
            if lines and lines[-1]["pid"] != instead_of:
                return lines[-1]
            await asyncio.sleep(POLL_S)
        return None


def check_naps(storm: Storm, tally: Tally) -> None:
    """Add the naps that ended early or too late."""
    began: dict[int, float] = {}
    for line in storm.lines("began"):
        began.setdefault(line["number"], line["clock_s"])
    woke = {line["number"]: line["clock_s"] for line in reversed(storm.lines("woke"))}
    for number in range(storm.naps):
        start, end = began.get(number), woke.get(number)
        if start is None:
            tally.stuck.append(f"nap {number} never began")
            continue
        until = time.monotonic() if end is None else end
        jumps = [jump for jump in storm.jumps if start - NAP_S < jump.at_s < until]
        if storm.clock.can_go_back and any(jump.is_back for jump in jumps):
            continue
        # If a worker was killed meanwhile, another one must take over first.
        extra_s = 2 * LEASE_S if any(start - NAP_S < kill.at_s < until for kill in storm.kills) else 0.0
        if end is None or end - start > MAX_NAP_S + extra_s:
            tally.stuck.append(f"nap {number} took {until - start:.1f} s" + (" and did not end" if end is None else ""))
        elif end - start < NAP_S - EARLY_S and all(jump.is_back for jump in jumps):
            tally.wrong.append(f"nap {number} took only {end - start:.2f} s")


def check_takeovers(storm: Storm, tally: Tally) -> None:
    """Add the killed workers whose work no other worker took within two leases."""
    owners = storm.lines("took")
    for kill in storm.kills:
        later = [line for line in owners if line["number"] == kill.number and line["pid"] != kill.pid]
        taken_s = min((line["clock_s"] for line in later if line["clock_s"] > kill.at_s), default=None)
        if any(kill.at_s - 2 * LEASE_S < line["clock_s"] <= kill.at_s for line in later):
            continue  # A jump forward had ended the lease, and another worker had the work already.
        since_s = kill.at_s
        if storm.clock.can_go_back:
            # The duty has to notice that the clock went back.
            until = float("inf") if taken_s is None else taken_s
            since_s = max([since_s, *(jump.at_s for jump in storm.jumps if jump.at_s < until)])
        if taken_s is None:
            tally.stuck.append(f"no worker took over holder {kill.number}")
            continue
        tally.recoveries_s.append(taken_s - since_s)
        if taken_s - since_s > 2 * LEASE_S:
            tally.stuck.append(f"a worker took over holder {kill.number} only after {taken_s - since_s:.1f} s")


async def check_stored_times(store: TestStore, tally: Tally) -> None:
    """Add the executions whose stored times go back."""
    newest: dict[str, Any] = {}
    for row in await store.query(STORED_TIMES):
        id_, at = str(row["execution_id"]), row["at"]
        if id_ in newest and at < newest[id_]:
            tally.wrong.append(f"an event of {id_} is earlier than the event before it")
        newest[id_] = at
        tally.events += 1


async def _run(trial: Trial) -> Tally:
    store, run = trial.new_store(), Run(trial.folder / "run")
    clock = await movable_clock(store, run.folder)
    options: StoreOptions = {"durable": False}
    if isinstance(store, PostgresTestStore):
        options |= {"schema": store.schema, "pool_size": 3}
    with fork_server() as forks, clock.installed():
        storm = Storm(make_tasks(clock.url, options), forks, clock, run, trial.random(), options)
        async with storm.tasks.app:
            await _storm(storm, trial.faults)
    tally = Tally(injected=len(storm.jumps), executions=storm.naps + storm.holders)
    check_naps(storm, tally)
    check_takeovers(storm, tally)
    if not clock.can_go_back:
        await check_stored_times(store, tally)
    await clock.remove()
    return tally


async def _storm(storm: Storm, jumps: int) -> None:
    stop = asyncio.Event()
    # The store must exist before the workers open it together.
    await storm.tasks.app.engine()
    for _ in range(WORKERS):
        storm.hire()
    others = [asyncio.create_task(storm.sleep(stop)), asyncio.create_task(storm.kill(stop))]
    await storm.jump(jumps)
    stop.set()
    await asyncio.gather(*others)
    await storm.settle()


def _row(name: str, fault: str, backend: Any) -> Row:
    limit_s = 2 * LEASE_S
    return Row(
        name, fault, _run, minimum=100, short_minimum=3, backends=(backend,), lease_s=LEASE_S, recovery_limit_s=limit_s
    )


ROWS = (
    _row("host clock jumps", "The wall clock of the host jumps forward and back by minutes to a day", "sqlite"),
    _row("server clock jumps", "The clock of the server jumps forward and back by minutes to a day", "postgres"),
)
