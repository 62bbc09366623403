"""Test that readers get every event once and in order despite late commits and lost listeners."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack
from uuid import UUID

import pytest

from flowfabric.engine import Engine
from tests.concurrency.outbox import (
    Ledger,
    Seen,
    Writer,
    follow,
    follow_by_cursor,
    follow_by_name,
    follow_completions,
    follow_naively,
    kill_listeners,
    read_stored_events,
)
from tests.sizes import Size
from tests.stores import PostgresTestStore, TestStore, opened

pytestmark = pytest.mark.full

WRITERS = 8
# The number of consecutive polls without new events before the test stops waiting.
PATIENCE = 100


async def test_four_readers_miss_nothing_of_what_eight_writers_write(
    store: TestStore, size: Size, scoreboard: Callable[[str], None]
) -> None:
    on_postgres = isinstance(store, PostgresTestStore)
    number = size.of(4_000, 50_000, 500_000) if on_postgres else size.of(2_000, 10_000, 500_000)
    ledgers = {name: Ledger(name) for name in ("live", "cursors", "named", "ends", "naive")}
    async with AsyncExitStack() as stack:
        # A SQLite file has one writer at a time, so more engines would only wait for each other.
        separate = WRITERS if on_postgres else 2
        engines = [await stack.enter_async_context(opened(store, renewal_events=True)) for _ in range(separate)]
        readers = [await stack.enter_async_context(opened(store)) for _ in range(2)]
        killed: list[int] = []
        tasks = start_readers(store, readers, ledgers, killed)
        given_back: deque[UUID] = deque(maxlen=16)
        writers = [
            Writer(engines[place % separate], place, given_back, lingers=on_postgres) for place in range(WRITERS)
        ]
        began = time.monotonic()
        await asyncio.gather(*(writer.write(number // WRITERS) for writer in writers))
        took_s = time.monotonic() - began
        every, ends = await read_stored_events(store)
        await wait_until_killed(killed, size.of(2, 20, 200) if on_postgres else 0)
        await wait_until_seen(ledgers, len(every), len(ends))
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes), outcomes
    given_up = sum(writer.given_up for writer in writers)
    storm = f"{len(every)} events in {took_s:.0f} s, {len(killed)} listeners killed, {given_up} rounds given up"
    scoreboard(f"{storm}; {count_errors(ledgers, every, ends)}")
    assert len(every) >= number
    for name in ("live", "cursors", "named"):
        ledger = ledgers[name]
        assert (ledger.missed(every), ledger.repeated(), ledger.disorder()) == (0, 0, 0), name
    assert (set(ledgers["ends"].seen), ledgers["ends"].repeated()) == (ends, 0)
    if on_postgres:
        missed = ledgers["naive"].missed(every) / len(every)
        assert missed > 0, f"the naive reader missed only {missed:.1%}, so the load is too light to show anything"


def count_errors(ledgers: dict[str, Ledger], every: set[Seen], ends: set[Seen]) -> str:
    """Return how many events each reader missed, got twice, and got out of order."""
    expected = {name: ends if name == "ends" else every for name in ledgers if ledgers[name].seen}
    found = {name: (ledgers[name], ledgers[name].missed(events)) for name, events in expected.items()}
    return ", ".join(f"{name} {missed}/{it.repeated()}/{it.disorder()}" for name, (it, missed) in found.items())


def start_readers(
    store: TestStore, engines: list[Engine], ledgers: dict[str, Ledger], killed: list[int]
) -> list[asyncio.Task[None]]:
    """Return the four readers and, on PostgreSQL, the naive reader and the task that kills listeners."""
    chance = random.Random(5)
    tasks = [
        follow(engines[0], ledgers["live"]),
        follow_by_cursor(engines[1], ledgers["cursors"], chance),
        follow_by_name(engines, ledgers["named"], chance),
        follow_completions(engines[1], ledgers["ends"]),
    ]
    if isinstance(store, PostgresTestStore):
        tasks += [follow_naively(store, ledgers["naive"]), kill_listeners(store, 1.0, killed)]
    return [asyncio.create_task(each) for each in tasks]


async def wait_until_killed(killed: list[int], least: int) -> None:
    """Wait until at least `least` listeners were killed."""
    async with asyncio.timeout(60 + 2 * least):
        while len(killed) < least:  # noqa: ASYNC110 - another task kills once a second
            await asyncio.sleep(0.1)


async def wait_until_seen(ledgers: dict[str, Ledger], every: int, ends: int) -> None:
    """Wait until the readers have received all stored events or stop making progress.

    The test then checks their ledgers.
    """
    expected = {"live": every, "cursors": every, "named": every, "ends": ends}
    seen, patience = -1, PATIENCE
    while patience and any(len(ledgers[name].seen) < number for name, number in expected.items()):
        await asyncio.sleep(0.1)
        now = sum(len(ledgers[name].seen) for name in expected)
        seen, patience = now, PATIENCE if now > seen else patience - 1
