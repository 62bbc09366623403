"""The environment of every scenario: how much to measure, its stores, the contenders, and the report."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import statistics
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from benchmarks.bars import POSTGRES, SQLITE
from benchmarks.contenders import Answer, Contender, ContenderFailed, Program
from benchmarks.cpu import Meter, parent_of, server_cpu_s
from benchmarks.entrants import Entrants
from benchmarks.peers.protocol import Request
from benchmarks.report import OURS, Report, Series
from benchmarks.spread import Spread

SDK = f"{OURS} SDK"
ENGINE = f"{OURS} engine"
BEFORE = "the checkout before"
SIDES = ("client_s", "server_s")
NO_CPU = "this system does not report the CPU of processes"
DURABILITY = ("fsync", "synchronous_commit", "full_page_writes")
Value = Callable[[Answer], float]


@dataclass(frozen=True, slots=True)
class Plan:
    """The duration of each figure, the number of rounds, and the size of backlogs."""

    seconds: float = 3.0
    rounds: int = 5
    backlog: int = 1_000_000
    signals: int = 10_000
    timeouts: int = 100
    races: int = 100
    starts: int = 200
    minutes: float = 2.0
    executions: int = 100_000
    paged: int = 200_000
    suspended: int = 10_000
    is_quick: bool = False

    @property
    def brief_s(self) -> float:
        """The duration of figures without a bar."""
        return min(1.0, self.seconds)


QUICK = Plan(0.4, 1, 3_000, 400, 5, 2, 20, 0.05, 1_000, 10_000, 100, is_quick=True)


@dataclass(slots=True)
class Turns:
    """The results of every contender in each round. Ratios are relative to the first contender."""

    answers: dict[Contender, list[Answer]] = field(default_factory=dict)

    def spread(self, contender: Contender, value: Value) -> Spread | None:
        """Return the contender's figure in each round, or None if the contender failed."""
        found = self.answers.get(contender)
        return Spread.of(map(value, found)) if found else None

    def cpu(self, contender: Contender, sides: Sequence[str]) -> Spread | None:
        """Return the contender's CPU per job on these sides in each round, or None if a side was not measured."""
        rounds = [[getattr(answer, side) for side in sides] for answer in self.answers[contender]]
        if any(value is None for values in rounds for value in values):
            return None
        jobs = (answer.jobs for answer in self.answers[contender])
        return Spread.of(sum(values) / number * 1e6 for values, number in zip(rounds, jobs, strict=True))

    def of(self, contenders: Sequence[Contender]) -> Turns:
        """Return the same turns for these contenders only. Ratios are relative to the first of these contenders."""
        return Turns({contender: self.answers[contender] for contender in contenders if contender in self.answers})


@dataclass(slots=True)
class Bench:
    """One benchmark run: its plan, report, stores and contenders."""

    plan: Plan
    report: Report
    folder: Path
    dsn: str
    entrants: Entrants
    postmaster: int | None = None
    # The checkout that this one is compared with.
    before_path: Path | None = None
    _databases: set[str] = field(default_factory=set)
    _numbers: Iterator[int] = field(default_factory=count)

    def some(self, number: int) -> int:
        """Return `number`, or a tenth of it in a quick run."""
        return max(1, number // 10) if self.plan.is_quick else number

    @property
    def ourselves(self) -> Program:
        """Our SDK as a contender."""
        return Program(Path(sys.executable), "benchmarks.ours")

    def server(self, backend: str) -> Meter:
        """Return the CPU meter of the server behind a backend, or None for SQLite."""
        if backend == POSTGRES and self.postmaster is not None:
            postmaster = self.postmaster
            return lambda: server_cpu_s(postmaster)
        return self.entrants.redis_meter if backend not in (POSTGRES, SQLITE) else lambda: None

    async def store(self, backend: str, name: str) -> str:
        """Return the address of the named store. The store is empty when it is first requested."""
        plain = _plain(name)
        if backend == SQLITE:
            return str(self.folder / f"{plain}.db")
        return await self._database(f"bench_{plain}") if backend == POSTGRES else self.entrants.redis_url(plain)

    async def discard(self, backend: str, name: str) -> None:
        """Drop a store that is no longer needed."""
        if backend == SQLITE:
            for path in self.folder.glob(f"{_plain(name)}.db*"):
                path.unlink()
        elif backend == POSTGRES:
            async with _connected(self.dsn) as connection:
                await connection.execute(f'DROP DATABASE IF EXISTS "bench_{_plain(name)}" WITH (FORCE)')
            self._databases.discard(f"bench_{_plain(name)}")

    async def briefly(self, contenders: Sequence[Contender]) -> Turns:
        """Measure figures without a bar: two rounds of one second."""
        return await self.in_turns(contenders, seconds=self.plan.brief_s, rounds=min(2, self.plan.rounds))

    async def in_turns(
        self, contenders: Sequence[Contender], *, seconds: float | None = None, rounds: int | None = None
    ) -> Turns:
        """Let the contenders take turns, round by round, so that a disturbance affects all of them."""
        turns, out = Turns(), set()
        for _ in range(rounds or self.plan.rounds):
            for contender in contenders:
                if contender in out:
                    continue
                try:
                    answer = await contender.turn(self.plan.seconds if seconds is None else seconds)
                except ContenderFailed as error:
                    if not contender.is_peer:
                        raise
                    out.add(contender)
                    turns.answers.pop(contender, None)
                    self.report.absent[f"{contender.who} on {contender.backend}"] = str(error)
                    continue
                turns.answers.setdefault(contender, []).append(answer)
        return turns

    def show(
        self, scenario: str, unit: str, turns: Turns, value: Value = lambda answer: answer.rate, *, less: bool = False
    ) -> None:
        """Add a figure of every contender to the report. Set `less` for times, where smaller is better."""
        base = next(iter(turns.answers))
        ours = turns.spread(base, value)
        assert ours is not None, "the first contender is ours and must not fail"
        for contender, answers in turns.answers.items():
            figure = Spread.of(map(value, answers))
            ratio = None if contender.who.startswith(OURS) else figure.over(ours) if less else ours.over(figure)
            cpu = _cpu_us(answers)
            cpu_ratio = None if ratio is None else _cpu_ratio(cpu, _cpu_us(turns.answers[base]))
            self.report.add(Series(scenario, contender.backend, contender.who, unit, figure, *cpu, ratio, cpu_ratio))
            for version in {answer.version for answer in answers if answer.version}:
                self.report.notes[contender.who.partition(",")[0]] = version

    def figure(self, scenario: str, backend: str, who: str, unit: str, *values: float) -> Spread:
        """Add one of our figures, measured without other contenders, to the report."""
        return self.report.add(Series(scenario, backend, who, unit, Spread(values))).figure

    def sdk(self, request: Request, backend: str, who: str = SDK) -> Contender:
        """Return our SDK as a contender."""
        return self._program(who, backend, self.ourselves, request, is_peer=False)

    def before(self, request: Request, backend: str) -> list[Contender]:
        """Return the SDK of the checkout before the work on this one, if the run names that checkout."""
        if self.before_path is None:
            return []
        program = Program(Path(sys.executable), "benchmarks.ours", self.before_path)
        return [self._program(BEFORE, backend, program, request, is_peer=False)]

    def judge_before(self, key: str, backend: str, turns: Turns, sides: Sequence[str] = SIDES) -> None:
        """Judge the CPU per job of the first contender, divided by that of the checkout before."""
        _, *others = turns.answers
        if not others:
            self.report.leave_out(key, backend, "run with --before PATH")
            return
        self.judge_cpu(key, backend, turns, others[0], sides)

    def judge_cpu(self, key: str, backend: str, turns: Turns, other: Contender, sides: Sequence[str] = SIDES) -> None:
        """Judge the CPU per job of the first contender, divided by that of another one."""
        ours, theirs = (turns.cpu(contender, sides) for contender in (next(iter(turns.answers)), other))
        if ours is None or theirs is None:
            self.report.leave_out(key, backend, NO_CPU)
        else:
            self.report.judge(key, backend, ours.over(theirs))

    def peers(self, backend: str, request: Request) -> list[Contender]:
        """Return the peers that support the scenario on a backend, and report the absent ones."""
        able = self.entrants.of(request.scenario, backend, self.report)
        return [self._program(who, backend, program, request, is_peer=True) for who, program in able]

    def _program(self, who: str, backend: str, program: Program, request: Request, *, is_peer: bool) -> Contender:
        """Return a contender that runs a program, with an empty store for each turn."""

        async def turn(seconds: float) -> Answer:
            name = f"{who}_{next(self._numbers)}"
            asked = replace(request, store=await self.store(backend, name), seconds=seconds)
            try:
                return await program.measure(asked, self.server(backend))
            finally:
                await self.discard(backend, name)

        return Contender(who, backend, turn, is_peer)

    async def _database(self, name: str) -> str:
        address = urlsplit(self.dsn)
        if name not in self._databases:
            async with _connected(self.dsn) as connection:
                await connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
                await connection.execute(f'CREATE DATABASE "{name}"')
            self._databases.add(name)
        return urlunsplit(address._replace(path=f"/{name}"))

    async def find_server(self) -> None:
        """Record the server's version, its durability settings, and where to read its CPU."""
        async with _connected(self.dsn) as connection:
            self.report.notes[POSTGRES] = str(await connection.fetchval("SELECT version()")).split(",")[0]
            settings = {name: await connection.fetchval(f"SHOW {name}") for name in DURABILITY}
            if urlsplit(self.dsn).hostname in (None, "localhost", "127.0.0.1"):
                self.postmaster = parent_of(int(await connection.fetchval("SELECT pg_backend_pid()")))
        told = ", ".join(f"{name}={value}" for name, value in settings.items())
        self.report.notes["durability on PostgreSQL, for all"] = told
        self.report.notes["durability on SQLite, for all"] = "synchronous=FULL"
        self.report.notes[SQLITE] = sqlite3.sqlite_version

    async def drop(self) -> None:
        """Drop the databases that this run created in an existing server."""
        async with _connected(self.dsn) as connection:
            for name in self._databases:
                await connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name.lower())


def load() -> str:
    """Return the load of the machine."""
    return ", ".join(f"{value:.1f}" for value in os.getloadavg())


def _cpu_us(answers: Sequence[Answer]) -> tuple[float | None, float | None]:
    """Return the CPU per job of the contender and of the server."""
    return _per_job_us(answers, "client_s"), _per_job_us(answers, "server_s")


def _cpu_ratio(theirs: tuple[float | None, float | None], ours: tuple[float | None, float | None]) -> float | None:
    """Return the ratio of the CPU of client and server together. SQLite has no server."""
    if theirs[0] is None or not ours[0]:
        return None
    return (theirs[0] + (theirs[1] or 0.0)) / (ours[0] + (ours[1] or 0.0))


def _per_job_us(answers: Sequence[Answer], side: str) -> float | None:
    found: list[float | None] = [getattr(answer, side) for answer in answers]
    used = [value / answer.jobs * 1e6 for value, answer in zip(found, answers, strict=True) if value is not None]
    return statistics.median(used) if len(used) == len(answers) else None


@asynccontextmanager
async def _connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncio.wait_for(asyncpg.connect(dsn), 30)
    try:
        yield connection
    finally:
        await connection.close()
