"""One committed INSERT of one row: the unit in which latencies are also printed, because it depends on the machine."""

from __future__ import annotations

import asyncio
import sqlite3
import time

import asyncpg

from benchmarks.bars import POSTGRES
from benchmarks.bench import Bench, Turns
from benchmarks.contenders import Answer, Contender, p50
from benchmarks.report import Series
from benchmarks.spread import Spread

_PAUSE_S = 0.002
_UNIT = "single-row commits"


async def single_commits(bench: Bench, backend: str) -> Contender:
    """Return a contender that commits one row at a time."""
    store = await bench.store(backend, "commits")

    async def turn(_: float) -> Answer:
        if backend == POSTGRES:
            times = await _postgres_commits_ms(store, bench.plan.starts)
        else:
            times = await asyncio.to_thread(_sqlite_commits_ms, store, bench.plan.starts)
        return Answer(len(times), sum(times) / 1000, times)

    return Contender("one INSERT, committed", backend, turn)


def show_in_commits(bench: Bench, scenario: str, turns: Turns, commit: Contender) -> dict[Contender, Spread]:
    """Report the median latencies of the other contenders as multiples of one commit, and return them."""
    unit = turns.spread(commit, p50)
    assert unit is not None, "our contender must not fail"
    others = {who: Spread.of(map(p50, answers)).over(unit) for who, answers in turns.answers.items() if who != commit}
    for contender, figure in others.items():
        bench.report.add(Series(scenario, contender.backend, contender.who, _UNIT, figure))
    return others


async def _postgres_commits_ms(dsn: str, number: int) -> list[float]:
    """Return the times of single-row commits by asyncpg with a prepared statement."""
    connection = await asyncpg.connect(dsn)
    await connection.execute("CREATE TABLE IF NOT EXISTS one (id BIGSERIAL PRIMARY KEY, value BYTEA)")
    statement = await connection.prepare("INSERT INTO one (value) VALUES ($1)")
    times = []
    for _ in range(number):
        await asyncio.sleep(_PAUSE_S)
        began = time.perf_counter()
        await statement.fetch(b"1")
        times.append((time.perf_counter() - began) * 1000)
    await connection.close()
    return times


def _sqlite_commits_ms(path: str, number: int) -> list[float]:
    """Return the times of single-row commits by sqlite3 in WAL mode."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE IF NOT EXISTS one (id INTEGER PRIMARY KEY, value BLOB)")
    times = []
    for _ in range(number):
        time.sleep(_PAUSE_S)
        began = time.perf_counter()
        connection.execute("INSERT INTO one (value) VALUES (?)", (b"1",))
        times.append((time.perf_counter() - began) * 1000)
    connection.close()
    return times
