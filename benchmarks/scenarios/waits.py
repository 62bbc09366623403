"""Waits: suspend, signal, resume; many signals to one execution; the lateness of timeouts."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from functools import partial

from benchmarks.bars import BOTH, POSTGRES
from benchmarks.bench import ENGINE, SDK, Bench
from benchmarks.commits import show_in_commits, single_commits
from benchmarks.contenders import Answer, Contender, p50
from benchmarks.peers.protocol import Request
from benchmarks.spread import Spread, percentile
from flowfabric.engine import Engine, Lease, Policy, Single, Submission, Suspended, connect

IN_FLIGHT = 64
_ALONE = 60
_ALONE_NAME = "suspend, signal, resume: one at a time"
_NEVER = Single("answer", "never")


async def waits(bench: Bench) -> None:
    """Measure suspend, signal and resumed claim at the engine, and signal to result with the SDK, alone and 64 in
    flight.
    """
    for backend in BOTH:
        number = 5 if bench.plan.is_quick else _ALONE
        async with connect(await bench.store(backend, "waits")) as engine:
            alone = Contender(f"{ENGINE}, suspend to claim", backend, partial(_alone, engine, number))
            signalled = bench.sdk(Request("resume", "", number=number), backend, f"{SDK}, signal to result")
            commit = await single_commits(bench, backend)
            turns = await bench.in_turns([alone, signalled, commit])
            bench.show(_ALONE_NAME, "ms p50", turns.of([alone, signalled]), p50, less=True)
            multiples = show_in_commits(bench, _ALONE_NAME, turns, commit)
            _judge(bench, "B5.alone", backend, turns.spread(alone, p50))
            _judge(bench, "B5.commits", backend, multiples[signalled])
            together = Contender(ENGINE, backend, partial(_together, engine))
            request = Request("round_trips", "", in_flight=IN_FLIGHT)
            tasks, before = bench.sdk(request, backend), bench.before(request, backend)
            turns = await bench.in_turns([together, tasks, *before])
            bench.show("suspend, signal, resume: 64 in flight", "round trips/s", turns)
            _judge(bench, "B5.together", backend, turns.spread(together, lambda answer: answer.rate))
            if backend == POSTGRES:
                bench.judge_before("B5.before", backend, turns.of([tasks, *before]))


async def signals(bench: Bench) -> None:
    """Send many signals that do not end a wait to one execution. The second half must not be slower than the first."""
    for backend in BOTH:
        async with connect(await bench.store(backend, "signals")) as engine:
            halves = await _halves_s(engine, bench.plan.signals)
        rate = bench.plan.signals / sum(halves)
        bench.figure(f"{bench.plan.signals:,} signals to one execution", backend, ENGINE, "signals/s", rate)
        bench.report.judge("B14", backend, Spread.of([halves[1] / halves[0]]))


async def timers(bench: Bench) -> None:
    """Measure how late the duties of an idle engine apply the timeout of a suspension."""
    for backend in BOTH:
        async with connect(await bench.store(backend, "timers")) as engine, engine.reconcilers.run_in_background():
            late = [await _late_ms(engine) for _ in range(bench.plan.timeouts)]
        assert min(late) >= 0, "a timer never fires early"
        bench.figure("lateness of a timeout", backend, ENGINE, "ms p50", percentile(late, 0.5))
        worst = bench.figure("lateness of a timeout", backend, ENGINE, "ms p99", percentile(late, 0.99))
        bench.report.judge("timers", backend, worst)


def _judge(bench: Bench, key: str, backend: str, figure: Spread | None) -> None:
    """Judge PostgreSQL. SQLite has no bars here and is only shown."""
    if backend == POSTGRES and figure is not None:
        bench.report.judge(key, backend, figure)


async def _alone(engine: Engine, number: int, _: float) -> Answer:
    [lease] = await _leases(engine, 1)
    times = []
    for place in range(number):
        began = time.perf_counter()
        await _signal(engine, lease, f"alone-{place}")
        [lease] = await engine.leases.claim(["default"], "bench", lease_ttl="1h")
        times.append((time.perf_counter() - began) * 1000)
    await engine.leases.complete(lease.fence)
    return Answer(number, sum(times) / 1000, times)


async def _together(store: Engine, seconds: float) -> Answer:
    """Return the rate with many executions in flight, while one worker claims all of them.

    Unfinished executions stay in a separate namespace.
    """
    engine = store.for_namespace(f"turn-{time.monotonic_ns()}")
    leases: asyncio.Queue[Lease] = asyncio.Queue()
    for lease in await _leases(engine, IN_FLIGHT):
        leases.put_nowait(lease)
    started, done, resumed = time.perf_counter(), 0, asyncio.Event()

    async def caller(place: int) -> None:
        nonlocal done
        while time.perf_counter() - started < seconds:
            lease = await leases.get()
            await _signal(engine, lease, f"{place}-{done}")
            resumed.set()
            done += 1

    async def claimer() -> None:
        while True:
            await resumed.wait()
            resumed.clear()
            for lease in await engine.leases.claim(["default"], "bench", limit=IN_FLIGHT, lease_ttl="1h"):
                leases.put_nowait(lease)

    claiming = asyncio.create_task(claimer())
    await asyncio.gather(*(caller(place) for place in range(IN_FLIGHT)))
    taken = time.perf_counter() - started
    claiming.cancel()
    await asyncio.gather(claiming, return_exceptions=True)
    return Answer(done, taken)


async def _halves_s(engine: Engine, number: int) -> list[float]:
    created = await engine.executions.submit("noop", policy=Policy(max_signals=2 * number))
    lease = await engine.leases.claim_execution(created.id, "bench")
    suspended = await engine.leases.suspend(lease.fence, ["answer"], _NEVER)
    assert isinstance(suspended, Suspended), "no signal has arrived yet"
    token = suspended.token("answer")
    assert token is not None, "a new waitpoint has a token"
    halves = []
    for _ in range(2):
        began = time.perf_counter()
        for _ in range(number // 2):
            await engine.signals.deliver(token, "other")
        halves.append(time.perf_counter() - began)
    return halves


async def _late_ms(engine: Engine) -> float:
    [lease] = await _leases(engine, 1)
    await engine.leases.suspend(lease.fence, ["answer"], timeout=0.05, on_timeout="expire")
    due = (await engine.executions.describe(lease.execution_id)).suspension
    outcome = await engine.executions.wait(lease.execution_id, timeout=10)
    assert due is not None and due.timeout_at is not None and outcome is not None, "the suspension timed out"
    return (outcome.ended_at - due.timeout_at).total_seconds() * 1000


async def _signal(engine: Engine, lease: Lease, key: str) -> None:
    """Suspend under a key and end the wait."""
    suspended = await engine.leases.suspend(lease.fence, ["answer"], key=key)
    assert isinstance(suspended, Suspended), "no signal has arrived yet"
    token = suspended.token("answer")
    assert token is not None, "a new waitpoint has a token"
    await engine.signals.deliver(token, "yes", b"1", created_at=datetime.now(UTC))


async def _leases(engine: Engine, number: int) -> list[Lease]:
    await engine.executions.submit_many([Submission(kind="noop") for _ in range(number)])
    return await engine.leases.claim(["default"], "bench", limit=number, lease_ttl="1h")
