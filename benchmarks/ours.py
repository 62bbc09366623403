"""Our SDK as a contender: a process with an app that speaks the protocol of peers."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext

from benchmarks.peers.driving import Coroutines
from benchmarks.peers.protocol import Request, Scenario, Turn, serve
from benchmarks.tasks import NAMESPACE, Tasks, tasks_on
from benchmarks.windows import window_meter
from benchmarks.workers import claim_and_complete, worker_process
from flowfabric.core.executions.states import State
from flowfabric.engine import Submission, connect
from flowfabric.worker.event_loop import event_loop_runner, new_event_loop
from tests.idle_workers import StatementCount

_SLOTS = 256
_PAUSE_S = 0.01
_WARM = 64
_ROOM = 4_096
_BATCH = 100
_SHORT_LEASE_S = 6


async def jobs(turn: Turn) -> None:
    """Run trivial tasks from submit to result. With the option `count`, also count statements per job."""
    counting = StatementCount() if turn.request.options.get("count") else None
    with counting or nullcontext():
        async with _working(turn.request) as tasks:
            done, before, after = await _rate(turn, tasks.trivial.run, lambda: counting.number if counting else 0)
            turn.end(done, numbers={"statements": (after - before) / done} if counting else None)


async def queue(turn: Turn) -> None:
    """Use the engine as a queue: submit, claim and complete in batches of 100, while no caller waits for a result."""
    store, driver = turn.request.store, Coroutines(turn)
    async with connect(store, namespace=NAMESPACE) as engine, engine.reconcilers.run_in_background():
        working = [asyncio.create_task(claim_and_complete(engine, _BATCH, driver.ran)) for _ in range(2)]

        async def submit(number: int) -> None:
            await engine.executions.submit_many([Submission(kind="noop", payload=b"1") for _ in range(number)])

        await driver.rate(submit, batch=_BATCH)
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)


async def steps(turn: Turn) -> None:
    """Run tasks with the given number of steps, from submit to result. Each step counts as a job."""
    number = turn.request.number
    async with _working(turn.request) as tasks:
        task = tasks.ten_steps if number == 10 else tasks.one_step
        done, _, _ = await _rate(turn, task.run, lambda: 0)
        turn.end(done * number)


async def start(turn: Turn) -> None:
    """Measure the time from submit to the first line of the task on an idle worker, in this or another process."""
    if not turn.request.options.get("across"):
        async with _working(turn.request) as tasks:
            await _starts(turn, tasks)
        return
    async with tasks_on(turn.request.store) as tasks, worker_process(turn.request.store, _SLOTS):
        await _starts(turn, tasks)


async def _starts(turn: Turn, tasks: Tasks) -> None:
    for _ in range(5):
        await tasks.when.run()
    turn.begin()
    times = []
    for _ in range(turn.request.number):
        await asyncio.sleep(_PAUSE_S)
        began = time.perf_counter()
        started = await tasks.when.run()
        times.append((started - began) * 1000)
    turn.end(len(times), times_ms=times)


async def step_alone(turn: Turn) -> None:
    """Measure one step of a task while nothing else uses the store."""
    async with _working(turn.request) as tasks:
        for _ in range(5):
            await tasks.timed_step.run()
        turn.begin()
        times = [await tasks.timed_step.run() for _ in range(turn.request.number)]
        turn.end(len(times), times_ms=times)


async def resume(turn: Turn) -> None:
    """Measure the time from the signal to the result of a suspended task."""
    async with _working(turn.request) as tasks:
        turn.begin()
        times = [await _resumed_ms(tasks) for _ in range(turn.request.number)]
        turn.end(len(times), times_ms=times)


async def _resumed_ms(tasks: Tasks) -> float:
    handle = await tasks.waiting.submit()
    while (await handle.status()).state is not State.SUSPENDED:  # noqa: ASYNC110 - the measured time starts after this
        await asyncio.sleep(0.001)
    began = time.perf_counter()
    await handle.signal(tasks.go, 1)
    await handle
    return (time.perf_counter() - began) * 1000


async def round_trips(turn: Turn) -> None:
    """Run tasks that suspend, receive a signal and complete, with a fixed number in flight."""
    async with _working(turn.request) as tasks:

        async def call(number: int) -> int:
            handle = await tasks.waiting.submit()
            await handle.signal(tasks.go, number)
            return await handle

        done, _, _ = await _rate(turn, call, lambda: 0)
        turn.end(done)


async def chains(turn: Turn) -> None:
    """Run flows of ten tasks, each of which takes the result of the previous one."""
    async with _working(turn.request) as tasks:

        async def call(number: int) -> int:
            flow = tasks.app.flow("chain")
            node = flow.add(tasks.trivial, number)
            for _ in range(9):
                node = flow.add(tasks.trivial, node.result)
            return await (await flow.submit())[node]

        done, _, _ = await _rate(turn, call, lambda: 0)
        turn.end(done)


async def race(turn: Turn) -> None:
    """Run a task that races children, one of which returns immediately.

    The worker has a slot for every child. The lease is short, because a loser frees its slot when its lease is due for
    renewal.
    """
    store = turn.request.store
    async with tasks_on(store) as tasks, tasks.app.worker(concurrency=_ROOM, lease=_SHORT_LEASE_S):
        await tasks.racing.run(10)
        turn.begin()
        times = []
        while not turn.is_over:
            began = time.perf_counter()
            await tasks.racing.run(turn.request.number)
            times.append((time.perf_counter() - began) * 1000)
        turn.end(len(times), times_ms=times)


async def steady(turn: Turn) -> None:
    """Record each window of a long load, while ended executions are purged."""
    windows, kept_s = int(turn.request.options["windows"]), turn.request.options["retention_s"]
    store = turn.request.store
    async with connect(store, event_retention=kept_s) as engine, tasks_on(store, retention_s=kept_s) as tasks:
        tasks.app.engines.adopt(engine)
        async with tasks.app.worker(concurrency=_SLOTS), window_meter(tasks, turn.request.options) as meter:
            await tasks.trivial.run(1)
            turn.begin()
            found, total = [], 0
            for place in range(windows):
                ends = turn.request.seconds * (place + 1) / windows
                done = await _until(turn, tasks.trivial.run, ends)
                found.append(await meter.window(done))
                total += done
            turn.end(total, numbers={name: [window[name] for window in found] for name in found[0]})
        tasks.app.engines.adopt(None)


async def _rate(turn: Turn, call: Callable[[int], Awaitable[object]], count: Callable[[], int]) -> tuple[int, int, int]:
    """Return the number of calls made in the requested time, and what `count` returns before and after that time."""
    await asyncio.gather(*(call(1) for _ in range(min(_WARM, turn.request.in_flight))))
    turn.begin()
    before = count()
    done = await _until(turn, call, turn.request.seconds)
    return done, before, count()


async def _until(turn: Turn, call: Callable[[int], Awaitable[object]], ends_s: float) -> int:
    done = 0

    async def caller() -> None:
        nonlocal done
        while turn.passed_s < ends_s:
            await call(1)
            done += 1

    await asyncio.gather(*(caller() for _ in range(turn.request.in_flight)))
    return done


@asynccontextmanager
async def _working(request: Request) -> AsyncIterator[Tasks]:
    async with tasks_on(request.store) as tasks, tasks.app.worker(concurrency=_SLOTS):
        yield tasks


def _in_loop(scenario: Callable[[Turn], Awaitable[None]]) -> Scenario:
    async def run(turn: Turn) -> None:
        await scenario(turn)

    def serve_it(turn: Turn) -> None:
        with event_loop_runner() as runner:
            runner.run(run(turn))

    return serve_it


SCENARIOS = (jobs, queue, steps, start, step_alone, resume, round_trips, chains, race, steady)

if __name__ == "__main__":
    version = f"FlowFabric of this checkout, Python {sys.version.split()[0]}, {new_event_loop().__class__.__module__}"
    serve(version, {scenario.__name__: _in_loop(scenario) for scenario in SCENARIOS})
