"""How soon submitted work starts on an idle worker: at the engine, at the SDK, across processes, and at the peers."""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.bars import BOTH, POSTGRES
from benchmarks.bench import ENGINE, SDK, Bench, Turns
from benchmarks.contenders import Answer, Contender
from benchmarks.entrants import REDIS
from benchmarks.peers.protocol import Request
from benchmarks.report import NO_PEERS
from benchmarks.spread import percentile
from flowfabric.engine import Engine, connect
from tests.idle_workers import idle_workers, start_latencies_ms

_NAME = "submit to start, idle worker"
IN_PROCESS = f"{SDK}, in process"
ACROSS = f"{SDK}, across processes"


async def starts(bench: Bench) -> None:
    """Medians and 99th percentiles of every contender; the ratio of the peers is to ours across processes."""
    number = bench.plan.starts
    request = Request("start", "", number=number)
    for backend in BOTH:
        across = bench.sdk(Request("start", "", number=number, options={"across": True}), backend, ACROSS)
        inside = bench.sdk(request, backend, IN_PROCESS)
        async with _engines(bench, backend) as engines:
            others = bench.peers(backend, request) + (bench.peers(REDIS, request) if backend == POSTGRES else [])
            turns = await bench.in_turns([across, inside, *engines, *others], rounds=min(3, bench.plan.rounds))
        bench.show(_NAME, "ms p50", turns, p50, less=True)
        bench.show(_NAME, "ms p99", turns, p99, less=True)
        if backend == POSTGRES:
            _judge(bench, turns, across, inside)


def p50(answer: Answer) -> float:
    """The median time of a turn."""
    return statistics.median(answer.times_ms)


def p99(answer: Answer) -> float:
    """The time that one in a hundred of a turn exceeded."""
    return percentile(answer.times_ms, 0.99)


def _judge(bench: Bench, turns: Turns, across: Contender, inside: Contender) -> None:
    judged = (("B4.in", inside, p50), ("B4.across", across, p50), ("B4.p99", across, p99))
    for key, contender, value in judged:
        figure = turns.spread(contender, value)
        assert figure is not None, "ours must not fail"
        bench.report.judge(key, POSTGRES, figure)
    rivals = [contender for contender in turns.answers if contender.is_peer and contender.who != "Huey"]
    figures = [figure for contender in rivals if (figure := turns.spread(contender, p50))]
    ours = turns.spread(across, p50)
    if ours is None or not figures:
        bench.report.leave_out("B4.peers", POSTGRES, NO_PEERS)
    else:
        bench.report.judge("B4.peers", POSTGRES, min(figures, key=lambda figure: figure.median).over(ours))


@asynccontextmanager
async def _engines(bench: Bench, backend: str) -> AsyncIterator[list[Contender]]:
    """The engine without the SDK: submitted by the engine that claims, and by another one of this process."""
    store = await bench.store(backend, "starts")
    async with connect(store) as own, connect(store) as other, idle_workers(lambda: _kept(own), 1) as started:

        def contender(who: str, engine: Engine) -> Contender:
            async def turn(_: float) -> Answer:
                times = await start_latencies_ms(engine, started, bench.plan.starts, 0.01)
                return Answer(len(times), sum(times) / 1000, times)

            return Contender(f"{ENGINE}, {who}", backend, turn)

        yield [contender("own", own), contender("another", other)]


@asynccontextmanager
async def _kept(engine: Engine) -> AsyncIterator[Engine]:
    yield engine
