"""Durable steps: tasks with one and ten steps next to the peers, and the cost of one step next to a commit."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from functools import partial

import asyncpg

from benchmarks.bars import BOTH, POSTGRES
from benchmarks.bench import ENGINE, SDK, Bench
from benchmarks.contenders import Answer, Contender
from benchmarks.peers.protocol import Request
from benchmarks.scenarios.jobs import IN_FLIGHT, judge_over, single_rate
from benchmarks.scenarios.starts import p50
from flowfabric.engine import connect

_TEN = 10


async def steps(bench: Bench) -> None:
    """Measure steps per second in tasks with ten steps and with one, also at the engine, and the time of one step."""
    for backend in BOTH:
        for number in (_TEN, 1):
            request = Request("steps", "", in_flight=IN_FLIGHT, number=number)
            peers = bench.peers(backend, request) if number == _TEN else []
            turns = await bench.in_turns([bench.sdk(request, backend), *peers])
            bench.show(f"durable steps, {number} a task", "steps/s", turns)
            if number == _TEN:
                figure = turns.spread(next(iter(turns.answers)), lambda answer: answer.rate)
                assert figure is not None, "our contender must not fail"
                bench.report.judge("B9.rate" if backend == POSTGRES else "B12.steps", backend, figure)
                if backend == POSTGRES:
                    judge_over(bench, "B9.DBOS", POSTGRES, turns, "DBOS")
        await _at_engine(bench, backend)
        await _alone(bench, backend)


async def _at_engine(bench: Bench, backend: str) -> None:
    async with connect(await bench.store(backend, "steps")) as engine:
        for number in (_TEN, 1):
            turn = partial(single_rate, bench, backend, engine, IN_FLIGHT, steps=number)
            turns = await bench.briefly([Contender(ENGINE, backend, turn)])
            bench.show(f"durable steps, {number} a task", "steps/s", turns)


async def _alone(bench: Bench, backend: str) -> None:
    store = await bench.store(backend, "commits")
    number = bench.plan.starts
    step = bench.sdk(Request("step_alone", "", number=number), backend, f"{SDK}, one step")

    async def turn(_: float) -> Answer:
        if backend == POSTGRES:
            times = await _postgres_commits_ms(store, number)
        else:
            times = await asyncio.to_thread(_sqlite_commits_ms, store, number)
        return Answer(len(times), sum(times) / 1000, times)

    commit = Contender("one INSERT, committed", backend, turn)
    turns = await bench.in_turns([step, commit])
    bench.show("one step alone", "ms p50", turns, p50, less=True)
    ours, theirs = turns.spread(step, p50), turns.spread(commit, p50)
    assert ours is not None and theirs is not None, "neither contender is a peer"
    if backend == POSTGRES:
        bench.report.judge("B9.alone", backend, ours.over(theirs))


async def _postgres_commits_ms(dsn: str, number: int) -> list[float]:
    """Return the times of single-row commits by asyncpg with a prepared statement."""
    connection = await asyncpg.connect(dsn)
    await connection.execute("CREATE TABLE IF NOT EXISTS one (id BIGSERIAL PRIMARY KEY, value BYTEA)")
    statement = await connection.prepare("INSERT INTO one (value) VALUES ($1)")
    times = []
    for _ in range(number):
        await asyncio.sleep(0.002)
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
        time.sleep(0.002)
        began = time.perf_counter()
        connection.execute("INSERT INTO one (value) VALUES (?)", (b"1",))
        times.append((time.perf_counter() - began) * 1000)
    connection.close()
    return times
