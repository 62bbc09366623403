"""How peers are kept busy and counted."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, cast

from benchmarks.peers.driving import Coroutines, Threads
from benchmarks.peers.protocol import Request, Turn


class FakeTurn:
    """Takes what is measured."""

    def __init__(self, **asked: Any) -> None:
        self.request = Request("jobs", "", **asked)
        self.began = threading.Event()
        self.jobs = 0
        self.times_ms: list[float] = []

    def begin(self) -> None:
        self.began.set()

    def end(self, jobs: int, *, times_ms: list[float] | None = None) -> None:
        self.jobs, self.times_ms = jobs, times_ms or []


def turn(fake: FakeTurn) -> Turn:
    return cast(Turn, fake)


def test_jobs_of_threads_are_counted_and_never_more_than_asked_for_are_in_flight() -> None:
    fake, most, flying, lock = FakeTurn(seconds=0.5, in_flight=3), 0, 0, threading.Lock()
    driver = Threads(turn(fake))

    def run() -> None:
        nonlocal flying
        time.sleep(0.002)
        with lock:
            flying -= 1
        driver.ran()

    def submit() -> None:
        nonlocal most, flying
        with lock:
            flying += 1
            most = max(most, flying)
        threading.Thread(target=run).start()

    driver.rate(submit, per_job=10)
    assert fake.jobs > 0 and fake.jobs % 10 == 0
    assert most == 3


def test_a_backlog_from_before_the_time_is_not_taken_for_speed() -> None:
    fake = FakeTurn(seconds=0.2, in_flight=1_000)
    driver = Threads(turn(fake))
    for _ in range(20):
        driver.ran()

    def run_what_was_there() -> None:
        fake.began.wait()
        for _ in range(500):
            driver.ran()

    threading.Thread(target=run_what_was_there).start()
    never = threading.Event()
    driver.rate(never.wait)
    assert fake.jobs == 0


async def test_jobs_of_coroutines_go_in_batches_and_are_counted() -> None:
    fake, batches = FakeTurn(seconds=0.5, in_flight=100), set()
    driver = Coroutines(turn(fake))

    async def submit(number: int) -> None:
        batches.add(number)
        await asyncio.sleep(0.001)
        for _ in range(number):
            driver.ran()

    await driver.rate(submit, batch=25)
    assert fake.jobs > 0 and fake.jobs % 25 == 0
    assert batches == {25}


async def test_a_start_is_the_time_from_the_submit_to_the_job() -> None:
    fake = FakeTurn(number=4)
    driver = Coroutines(turn(fake))

    async def submit(_: int) -> None:
        asyncio.get_running_loop().call_later(0.02, driver.ran)

    await driver.starts(submit)
    assert len(fake.times_ms) == fake.jobs == 4
    assert min(fake.times_ms) >= 19
