"""What every scenario is given: how much to measure, stores of its own, who takes part, and where figures go."""

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
DURABILITY = ("fsync", "synchronous_commit", "full_page_writes")
Value = Callable[[Answer], float]


@dataclass(frozen=True, slots=True)
class Plan:
    """How long each figure is measured, how often the contenders take turns, and how much is piled up."""

    seconds: float = 3.0
    rounds: int = 5
    backlog: int = 1_000_000
    signals: int = 10_000
    timeouts: int = 100
    races: int = 100
    starts: int = 200
    minutes: float = 2.0
    executions: int = 100_000
    suspended: int = 10_000
    is_quick: bool = False

    @property
    def brief_s(self) -> float:
        """How long what has no bar is measured."""
        return min(1.0, self.seconds)


QUICK = Plan(0.4, 1, 3_000, 400, 5, 2, 20, 0.05, 1_000, 100, is_quick=True)


@dataclass(slots=True)
class Turns:
    """What every contender answered, round by round; the first one is the one that ratios are made of."""

    answers: dict[Contender, list[Answer]] = field(default_factory=dict)

    def spread(self, contender: Contender, value: Value) -> Spread | None:
        """The contender's figure in each round; nothing for one that failed."""
        found = self.answers.get(contender)
        return Spread.of(map(value, found)) if found else None

    def of(self, contenders: Sequence[Contender]) -> Turns:
        """The same turns with these contenders only; ratios are made of the first of them."""
        return Turns({contender: self.answers[contender] for contender in contenders if contender in self.answers})


@dataclass(slots=True)
class Bench:
    """A run: its plan, its report, its stores and its contenders."""

    plan: Plan
    report: Report
    folder: Path
    dsn: str
    entrants: Entrants
    postmaster: int | None = None
    _databases: set[str] = field(default_factory=set)
    _numbers: Iterator[int] = field(default_factory=count)

    def some(self, number: int) -> int:
        """So many in flight, or a tenth of them in a quick run."""
        return max(1, number // 10) if self.plan.is_quick else number

    @property
    def ourselves(self) -> Program:
        """Our SDK as a contender."""
        return Program(Path(sys.executable), "benchmarks.ours")

    def server(self, backend: str) -> Meter:
        """Reads the CPU of the server behind a backend; SQLite has none."""
        if backend == POSTGRES and self.postmaster is not None:
            postmaster = self.postmaster
            return lambda: server_cpu_s(postmaster)
        return self.entrants.redis_meter if backend not in (POSTGRES, SQLITE) else lambda: None

    async def store(self, backend: str, name: str) -> str:
        """The address of a store of that name, empty when it is first asked for."""
        plain = _plain(name)
        if backend == SQLITE:
            return str(self.folder / f"{plain}.db")
        return await self._database(f"bench_{plain}") if backend == POSTGRES else self.entrants.redis_url(plain)

    async def discard(self, backend: str, name: str) -> None:
        """Takes away a store that is not needed any more."""
        if backend == SQLITE:
            for path in self.folder.glob(f"{_plain(name)}.db*"):
                path.unlink()
        elif backend == POSTGRES:
            async with _connected(self.dsn) as connection:
                await connection.execute(f'DROP DATABASE IF EXISTS "bench_{_plain(name)}" WITH (FORCE)')
            self._databases.discard(f"bench_{_plain(name)}")

    async def briefly(self, contenders: Sequence[Contender]) -> Turns:
        """The turns of figures that no bar is set for: a second each, twice."""
        return await self.in_turns(contenders, seconds=self.plan.brief_s, rounds=min(2, self.plan.rounds))

    async def in_turns(
        self, contenders: Sequence[Contender], *, seconds: float | None = None, rounds: int | None = None
    ) -> Turns:
        """Lets all take turns, round by round, so that a noisy neighbour hits everybody."""
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
        """Puts a figure of every contender into the report; `less` is said of times, where the smaller is better."""
        base = next(iter(turns.answers))
        ours = turns.spread(base, value)
        assert ours is not None, "the first one is ours and must not fail"
        for contender, answers in turns.answers.items():
            figure = Spread.of(map(value, answers))
            ratio = None if contender.who.startswith(OURS) else figure.over(ours) if less else ours.over(figure)
            cpu = _cpu_us(answers)
            cpu_ratio = None if ratio is None else _cpu_ratio(cpu, _cpu_us(turns.answers[base]))
            self.report.add(Series(scenario, contender.backend, contender.who, unit, figure, *cpu, ratio, cpu_ratio))
            for version in {answer.version for answer in answers if answer.version}:
                self.report.notes[contender.who.partition(",")[0]] = version

    def figure(self, scenario: str, backend: str, who: str, unit: str, *values: float) -> Spread:
        """Puts a figure of ours that has no contender into the report."""
        return self.report.add(Series(scenario, backend, who, unit, Spread(values))).figure

    def sdk(self, request: Request, backend: str, who: str = SDK) -> Contender:
        """Our SDK as a contender."""
        return self._program(who, backend, self.ourselves, request, is_peer=False)

    def peers(self, backend: str, request: Request) -> list[Contender]:
        """The peers that know the scenario on a backend; those that are absent are told."""
        able = self.entrants.of(request.scenario, backend, self.report)
        return [self._program(who, backend, program, request, is_peer=True) for who, program in able]

    def _program(self, who: str, backend: str, program: Program, request: Request, *, is_peer: bool) -> Contender:
        """A program whose every turn begins with an empty store."""

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
        """Notes which server this is, how durable it is, and where its CPU can be read."""
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
        """Takes away the databases that were made in somebody's server."""
        async with _connected(self.dsn) as connection:
            for name in self._databases:
                await connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name.lower())


def load() -> str:
    """How busy the machine is."""
    return ", ".join(f"{value:.1f}" for value in os.getloadavg())


def _cpu_us(answers: Sequence[Answer]) -> tuple[float | None, float | None]:
    """The CPU per job, of the contender and of the server."""
    return _per_job_us(answers, "client_s"), _per_job_us(answers, "server_s")


def _cpu_ratio(theirs: tuple[float | None, float | None], ours: tuple[float | None, float | None]) -> float | None:
    """The CPU of both sides together; a store without a server has one side only."""
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
