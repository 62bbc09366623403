"""Measure submit, claim and complete: our SDK next to the peers, and our engine next to the bare statements."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

from benchmarks.bars import POSTGRES, SQLITE
from benchmarks.bench import ENGINE, NO_CPU, SDK, SIDES, Bench, Turns
from benchmarks.contenders import Answer, Contender
from benchmarks.cpu import Stopwatch
from benchmarks.entrants import REDIS
from benchmarks.limits import pgbench_rate, pgbench_script, raw_sqlite_rate
from benchmarks.peers.protocol import Request
from benchmarks.report import NO_PEERS
from benchmarks.spread import Spread
from flowfabric.core.executions.records import route_digest
from flowfabric.engine import Engine, Lease, Step, Submission, connect

BATCH = 100
ABREAST = 4
IN_FLIGHT = 256
MANY_IN_FLIGHT = 1_024
_PEERS = ("DBOS", "Absurd", "Procrastinate", "PgQueuer")


async def jobs(bench: Bench) -> None:
    """Measure jobs from submit to result, with our SDK and the peers."""
    request = Request("jobs", "", in_flight=MANY_IN_FLIGHT)
    others = [contender for backend in (POSTGRES, REDIS) for contender in bench.peers(backend, request)]
    ours, before = bench.sdk(request, POSTGRES), bench.before(request, POSTGRES)
    turns = await bench.in_turns([ours, *before, *others])
    bench.show("submit to result", "jobs/s", turns)
    for who in _PEERS:
        judge_over(bench, f"B1.{who}", POSTGRES, turns, who)
    _judge_cpu(bench, turns)
    for side in SIDES:
        bench.judge_before(f"B3.before.{side.removesuffix('_s')}", POSTGRES, turns.of([ours, *before]), [side])
    await _count_statements(bench, request)

    request = Request("jobs", "", in_flight=IN_FLIGHT)
    ours, before = bench.sdk(request, SQLITE), bench.before(request, SQLITE)
    turns = await bench.in_turns([ours, *before, *bench.peers(SQLITE, request)])
    bench.show("submit to result", "jobs/s", turns)
    bench.report.judge("B12.jobs", SQLITE, _ours(turns))
    judge_over(bench, "B12.DBOS", SQLITE, turns, "DBOS")
    bench.judge_before("B12.before", SQLITE, turns.of([ours, *before]), SIDES[:1])


async def queue(bench: Bench) -> None:
    """Use the engine as a queue, next to PgQueuer: 100 in, 100 out, no caller waits. The CPU of both sides counts."""
    request = Request("queue", "", in_flight=MANY_IN_FLIGHT)
    peers = bench.peers(POSTGRES, replace(request, scenario="jobs"))
    others = [contender for contender in peers if contender.who == "PgQueuer"]
    turns = await bench.in_turns([bench.sdk(request, POSTGRES, f"{ENGINE}, used as a queue"), *others])
    bench.show("queue, batches of 100", "jobs/s", turns)
    if others and others[0] in turns.answers:
        bench.judge_cpu("B1.like", POSTGRES, turns, others[0])
    else:
        bench.report.leave_out("B1.like", POSTGRES, bench.report.absent.get(f"PgQueuer on {POSTGRES}", NO_PEERS))


async def batches(bench: Bench) -> None:
    """Measure batches of 100 at the engine next to the bare statements, and many concurrent callers of the engine."""
    for backend, prepared, key in ((POSTGRES, _beside_pgbench, "B2"), (SQLITE, _beside_raw_sqlite, "B12.raw")):
        store = await bench.store(backend, "batches")
        async with connect(store) as engine:
            await batch_rate(bench, backend, engine, 0.2)
            limit = await prepared(bench, store, engine)
            ours = Contender(ENGINE, backend, partial(batch_rate, bench, backend, engine))
            turns = await bench.in_turns([ours, limit])
            bench.show("batches of 100", "jobs/s", turns)
            bench.report.judge(key, backend, _ours(turns).over(_figure(turns, limit)))
            callers = Contender(ENGINE, backend, partial(single_rate, bench, backend, engine, IN_FLIGHT))
            bench.show("256 callers, one job at a time each", "jobs/s", await bench.in_turns([callers]))


async def batch_rate(bench: Bench, backend: str, engine: Engine, seconds: float) -> Answer:
    """Return the rate of batches of 100 from submit to complete, four in flight."""
    read, watch, done = bench.server(backend), Stopwatch(), 0
    before = read()

    async def lane() -> None:
        nonlocal done
        while watch.wall_s < seconds:
            finished = await cycle(engine, BATCH)
            done += finished  # Not `done += await …`, which would read `done` before other tasks have added to it.

    await asyncio.gather(*(lane() for _ in range(ABREAST)))
    return _answer(done, watch, before, read())


async def cycle(engine: Engine, size: int) -> int:
    """Submit, claim and complete one batch; return the number of completed executions."""
    await engine.executions.submit_many([Submission(kind="noop", payload=b"1") for _ in range(size)])
    leases = await engine.leases.claim(["default"], "bench", limit=size)
    return len(await engine.leases.complete_many([(lease.fence, b"1") for lease in leases]))


async def single_rate(
    bench: Bench, backend: str, engine: Engine, callers: int, seconds: float, *, steps: int = 0
) -> Answer:
    """Return the rate of callers that submit and complete one execution at a time, while one worker claims for all.

    With steps, each step recorded before the end counts as a job.
    """
    read, watch, done = bench.server(backend), Stopwatch(), 0
    before = read()
    ready: asyncio.Queue[Lease] = asyncio.Queue()

    async def caller() -> None:
        nonlocal done
        while watch.wall_s < seconds:
            await engine.executions.submit("noop", b"1")
            lease = await ready.get()
            for place in range(steps):
                await engine.leases.checkpoint(lease.fence, [Step(f"step-{place}", b"1")])
            await engine.leases.complete(lease.fence, b"1")
            done += steps or 1

    async def claimer() -> None:
        while True:
            for lease in await engine.leases.claim(["default"], "bench", limit=200):
                ready.put_nowait(lease)

    claiming = asyncio.create_task(claimer())
    await asyncio.gather(*(caller() for _ in range(callers)))
    claiming.cancel()
    await asyncio.gather(claiming, return_exceptions=True)
    return _answer(done, watch, before, read())


def judge_over(bench: Bench, key: str, backend: str, turns: Turns, who: str) -> None:
    """Judge the ratio of our figure to a peer's, or record why it is missing."""
    found = [contender for contender in turns.answers if contender.who == who]
    if found:
        bench.report.judge(key, backend, _ours(turns).over(_figure(turns, found[0])))
    else:
        bench.report.leave_out(key, backend, bench.report.absent.get(f"{who} on {backend}", NO_PEERS).splitlines()[0])


async def _beside_pgbench(bench: Bench, dsn: str, engine: Engine) -> Contender:
    script = bench.folder / "cycle.sql"
    route = route_digest("default", "default", "noop", ())
    script.write_text(pgbench_script("flowfabric", route, BATCH), encoding="utf-8")

    async def turn(seconds: float) -> Answer:
        read, watch = bench.server(POSTGRES), Stopwatch()
        before = read()
        rate = await pgbench_rate(dsn, script, BATCH, ABREAST, seconds)
        answer = _answer(round(rate * watch.wall_s), watch, before, read())
        return replace(answer, client_s=None)  # pgbench uses its CPU in another process.

    return Contender("pgbench, same statements", POSTGRES, turn)


async def _beside_raw_sqlite(_: Bench, path: str, engine: Engine) -> Contender:
    route = route_digest("default", "default", "noop", ())

    async def turn(seconds: float) -> Answer:
        rate = await asyncio.to_thread(raw_sqlite_rate, path, route, BATCH, seconds)
        return Answer(round(rate * seconds), seconds)

    return Contender("sqlite3, same statements", SQLITE, turn)


def _judge_cpu(bench: Bench, turns: Turns) -> None:
    for key, side in zip(("B3.client", "B3.server"), SIDES, strict=True):
        figure = turns.cpu(next(iter(turns.answers)), [side])
        if figure is None:
            bench.report.leave_out(key, POSTGRES, NO_CPU)
        else:
            bench.report.judge(key, POSTGRES, figure)


async def _count_statements(bench: Bench, request: Request) -> None:
    counting = Request("jobs", "", in_flight=request.in_flight, options={"count": True})
    turns = await bench.in_turns([bench.sdk(counting, POSTGRES)], rounds=1)
    [[answer]] = turns.answers.values()
    figure = bench.figure("submit to result", POSTGRES, SDK, "statements/job", answer.numbers["statements"])
    bench.report.judge("B3.statements", POSTGRES, figure)


def _ours(turns: Turns) -> Spread:
    return _figure(turns, next(iter(turns.answers)))


def _figure(turns: Turns, contender: Contender) -> Spread:
    figure = turns.spread(contender, lambda answer: answer.rate)
    assert figure is not None, "the contender took part"
    return figure


def _answer(done: int, watch: Stopwatch, before: float | None, after: float | None) -> Answer:
    server_s = None if before is None or after is None else after - before
    return Answer(done, watch.wall_s, client_s=watch.cpu_s, server_s=server_s)
