"""Durable functions: tasks that do nothing, and tasks of ten steps, from the submit to the result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from benchmarks.bars import Report
from benchmarks.measure import Stopwatch
from flowfabric import App, Task, step

STEPS = 10
_SLOTS = 256


async def nothing(number: int) -> int:
    """A step that does nothing."""
    return number


def functions(store: str) -> tuple[App, Task[[int], int], Task[[int], int]]:
    """An app with a trivial task and one of ten steps."""
    app = App(store, namespace="functions")

    @app.task
    async def trivial(number: int) -> int:
        return number

    @app.task
    async def ten_steps(number: int) -> int:
        for index in range(STEPS):
            number += await step(nothing, index)
        return number

    return app, trivial, ten_steps


async def durable_functions(name: str, store: str, seconds: float, report: Report, *, in_flight: int) -> None:
    """Tasks per second from submit to result, and steps per second."""
    app, trivial, ten_steps = functions(store)
    async with app, app.worker(concurrency=_SLOTS):
        await _rate(trivial.run, 0.5, 16)
        done, cpu_us = await _rate(trivial.run, seconds, in_flight)
        told = f"{done:,.0f} tasks/s from submit to result, {in_flight} in flight, {cpu_us:.0f} µs client CPU each"
        report.say(f"B1 {name}: {told}")
        done, cpu_us = await _rate(ten_steps.run, seconds, 256)
        least, bar = (15_000, "B9") if name == "PostgreSQL" else (5_000, "B12")
        text = f"{name}: {done * STEPS:,.0f} steps/s in tasks of ten, 256 in flight, {cpu_us:.0f} µs client CPU a task"
        report.at_least(bar, done * STEPS, least, text)


async def _rate(call: Callable[[int], Awaitable[int]], seconds: float, callers: int) -> tuple[float, float]:
    """Calls per second when so many callers each make one at a time, and the CPU of this process for each."""
    watch, done, before = Stopwatch(), 0, time.process_time()

    async def caller() -> None:
        nonlocal done
        while watch.wall_s < seconds:
            await call(1)
            done += 1

    await asyncio.gather(*(caller() for _ in range(callers)))
    return done / watch.wall_s, (time.process_time() - before) / done * 1e6
