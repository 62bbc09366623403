"""Tests for the drivers that keep peers busy and count their jobs."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, cast

from benchmarks.peers.driving import Coroutines, Threads
from benchmarks.peers.protocol import Request, Turn


class FakeTurn:
    """A turn that records the measurement."""

    def __init__(self, **options: Any) -> None:
        self.request = Request("jobs", "", **options)
        self.began = threading.Event()
        self.jobs = 0
        self.times_ms: list[float] = []

    def begin(self) -> None:
        self.began.set()

    def end(self, jobs: int, *, times_ms: list[float] | None = None) -> None:
        self.jobs, self.times_ms = jobs, times_ms or []


def as_turn(fake: FakeTurn) -> Turn:
    return cast(Turn, fake)


def test_thread_driver_counts_jobs_and_bounds_those_in_flight() -> None:
    fake, peak, in_flight, lock = FakeTurn(seconds=0.5, in_flight=3), 0, 0, threading.Lock()
    driver = Threads(as_turn(fake))

    def run() -> None:
        nonlocal in_flight
        time.sleep(0.002)
        with lock:
            in_flight -= 1
        driver.ran()

    def submit() -> None:
        nonlocal peak, in_flight
        with lock:
            in_flight += 1
            peak = max(peak, in_flight)
        threading.Thread(target=run).start()

    driver.rate(submit, per_job=10)
    assert fake.jobs > 0 and fake.jobs % 10 == 0
    assert peak == 3


def test_backlog_from_before_the_turn_is_not_counted() -> None:
    fake = FakeTurn(seconds=0.2, in_flight=1_000)
    driver = Threads(as_turn(fake))
    for _ in range(20):
        driver.ran()

    def run_backlog() -> None:
        fake.began.wait()
        for _ in range(500):
            driver.ran()

    threading.Thread(target=run_backlog).start()
    never = threading.Event()
    driver.rate(never.wait)
    never.set()
    assert fake.jobs == 0


async def test_coroutine_driver_submits_and_counts_batches() -> None:
    fake, batches = FakeTurn(seconds=0.5, in_flight=100), set()
    driver = Coroutines(as_turn(fake))

    async def submit(number: int) -> None:
        batches.add(number)
        await asyncio.sleep(0.001)
        for _ in range(number):
            driver.ran()

    earlier = asyncio.all_tasks()
    await driver.rate(submit, batch=25)
    assert asyncio.all_tasks() <= earlier, "the callers have ended"
    assert fake.jobs > 0 and fake.jobs % 25 == 0
    assert batches == {25}


async def test_start_time_is_from_submit_to_job() -> None:
    fake = FakeTurn(number=4)
    driver = Coroutines(as_turn(fake))

    async def submit(_: int) -> None:
        asyncio.get_running_loop().call_later(0.02, driver.ran)

    await driver.starts(submit)
    assert len(fake.times_ms) == fake.jobs == 4
    assert min(fake.times_ms) >= 19
