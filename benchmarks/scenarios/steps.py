"""Durable steps: tasks with one and ten steps next to the peers, and the cost of one step next to a commit."""

from __future__ import annotations

from functools import partial

from benchmarks.bars import BOTH, POSTGRES
from benchmarks.bench import ENGINE, SDK, Bench
from benchmarks.commits import show_in_commits, single_commits
from benchmarks.contenders import Contender, p50
from benchmarks.peers.protocol import Request
from benchmarks.scenarios.jobs import IN_FLIGHT, judge_over, single_rate
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
    step = bench.sdk(Request("step_alone", "", number=bench.plan.starts), backend, f"{SDK}, one step")
    commit = await single_commits(bench, backend)
    turns = await bench.in_turns([step, commit])
    bench.show("one step alone", "ms p50", turns, p50, less=True)
    multiples = show_in_commits(bench, "one step alone", turns, commit)
    if backend == POSTGRES:
        bench.report.judge("B9.alone", backend, multiples[step])
