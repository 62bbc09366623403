"""The start latency on an idle worker: at the engine, with the SDK, across processes, and of the peers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.bars import BOTH, POSTGRES
from benchmarks.bench import ENGINE, SDK, Bench, Turns
from benchmarks.commits import show_in_commits, single_commits
from benchmarks.contenders import Answer, Contender, p50, p99
from benchmarks.entrants import PEERS, REDIS
from benchmarks.peers.protocol import Request
from benchmarks.report import NO_PEERS
from benchmarks.spread import Spread
from flowfabric.engine import Engine, connect
from tests.idle_workers import idle_workers, start_latencies_ms

_NAME = "submit to start, idle worker"
IN_PROCESS = f"{SDK}, in process"
ACROSS = f"{SDK}, across processes"
_APART = {peer.who for peer in PEERS if peer.is_apart}


async def starts(bench: Bench) -> None:
    """Measure the median and 99th percentile of every contender.

    A peer is compared with our in-process figure, or with our figure across processes if its worker always runs in
    another process.
    """
    number = bench.plan.starts
    request = Request("start", "", number=number)
    for backend in BOTH:
        across = bench.sdk(Request("start", "", number=number, options={"across": True}), backend, ACROSS)
        inside = bench.sdk(request, backend, IN_PROCESS)
        async with _engines(bench, backend) as engines:
            others = bench.peers(backend, request) + (bench.peers(REDIS, request) if backend == POSTGRES else [])
            apart = [contender for contender in others if contender.who in _APART]
            within = [contender for contender in others if contender.who not in _APART]
            commit = await single_commits(bench, backend)
            everybody = [across, *apart, inside, *engines, *within, commit]
            turns = await bench.in_turns(everybody, rounds=min(3, bench.plan.rounds))
        alike = turns.of([across, *apart]), turns.of([inside, *engines, *within])
        for unit, value in (("ms p50", p50), ("ms p99", p99)):
            for group in alike:
                bench.show(_NAME, unit, group, value, less=True)
        multiples = show_in_commits(bench, _NAME, turns, commit)
        if backend == POSTGRES:
            bench.report.judge("B4.in.commits", POSTGRES, multiples[inside])
            bench.report.judge("B4.across.commits", POSTGRES, multiples[across])
            _judge(bench, turns, across, inside)
            for key, group in zip(("B4.peers.across", "B4.peers.in"), alike, strict=True):
                _judge_peers(bench, key, group)


def _judge(bench: Bench, turns: Turns, across: Contender, inside: Contender) -> None:
    judged = (("B4.in", inside, p50), ("B4.across", across, p50), ("B4.p99", across, p99))
    for key, contender, value in judged:
        figure = turns.spread(contender, value)
        assert figure is not None, "our contender must not fail"
        bench.report.judge(key, POSTGRES, figure)


def _judge_peers(bench: Bench, key: str, turns: Turns) -> None:
    """Judge the ratio of the best peer's figure to ours, both measured in the same way."""
    ours, *_ = turns.answers.values()
    rivals = [contender for contender in turns.answers if contender.is_peer and contender.who != "Huey"]
    figures = [figure for contender in rivals if (figure := turns.spread(contender, p50))]
    if figures:
        best = min(figures, key=lambda figure: figure.median)
        bench.report.judge(key, POSTGRES, best.over(Spread.of(map(p50, ours))))
    else:
        bench.report.leave_out(key, POSTGRES, NO_PEERS if bench.entrants.python is None else "its peers are absent")


@asynccontextmanager
async def _engines(bench: Bench, backend: str) -> AsyncIterator[list[Contender]]:
    """Return contenders without the SDK: an engine that also claims, and an engine that only submits."""
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
