"""No event is missed, doubled or out of order, whatever commits late and however often the listener dies."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack
from uuid import UUID

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
    written,
)
from tests.sizes import Size
from tests.stores import PostgresTestStore, TestStore, opened

WRITERS = 8
# How many times in a row to look for more in vain.
PATIENCE = 100


async def test_four_readers_miss_nothing_of_what_eight_writers_write(
    store: TestStore, size: Size, scoreboard: Callable[[str], None]
) -> None:
    on_postgres = isinstance(store, PostgresTestStore)
    number = size.of(4_000, 50_000, 500_000) if on_postgres else size.of(2_000, 10_000, 500_000)
    ledgers = {name: Ledger(name) for name in ("live", "cursors", "named", "ends", "naive")}
    async with AsyncExitStack() as stack:
        # One file has one writer at a time, so more processes would only wait for each other.
        separate = WRITERS if on_postgres else 2
        engines = [await stack.enter_async_context(opened(store, renewal_events=True)) for _ in range(separate)]
        readers = [await stack.enter_async_context(opened(store)) for _ in range(2)]
        killed: list[int] = []
        tasks = readings(store, readers, ledgers, killed)
        given_back: deque[UUID] = deque(maxlen=16)
        writers = [
            Writer(engines[place % separate], place, given_back, lingers=on_postgres) for place in range(WRITERS)
        ]
        began = time.monotonic()
        await asyncio.gather(*(writer.write(number // WRITERS) for writer in writers))
        took_s = time.monotonic() - began
        every, ends = await written(store)
        await until_killed(killed, size.of(2, 20, 200) if on_postgres else 0)
        await until_seen(ledgers, len(every), len(ends))
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes), outcomes
    given_up = sum(writer.given_up for writer in writers)
    storm = f"{len(every)} events in {took_s:.0f} s, {len(killed)} listeners killed, {given_up} rounds given up"
    scoreboard(f"{storm}; {tally(ledgers, every, ends)}")
    assert len(every) >= number
    for name in ("live", "cursors", "named"):
        found = ledgers[name]
        assert (found.missed(every), found.doubled(), found.disorder()) == (0, 0, 0), name
    assert (set(ledgers["ends"].seen), ledgers["ends"].doubled()) == (ends, 0)
    if on_postgres:
        missed = ledgers["naive"].missed(every) / len(every)
        assert missed > 0, f"the naive reader missed only {missed:.1%}: the storm is not fierce enough"


def tally(ledgers: dict[str, Ledger], every: set[Seen], ends: set[Seen]) -> str:
    """What each reader missed, had twice, and had out of order."""
    wanted = {name: ends if name == "ends" else every for name in ledgers if ledgers[name].seen}
    found = {name: (ledgers[name], ledgers[name].missed(events)) for name, events in wanted.items()}
    return ", ".join(f"{name} {missed}/{it.doubled()}/{it.disorder()}" for name, (it, missed) in found.items())


def readings(
    store: TestStore, engines: list[Engine], ledgers: dict[str, Ledger], killed: list[int]
) -> list[asyncio.Task[None]]:
    """The four readers; on PostgreSQL also the naive one, and whoever kills the listeners."""
    chance = random.Random(5)
    found = [
        follow(engines[0], ledgers["live"]),
        follow_by_cursor(engines[1], ledgers["cursors"], chance),
        follow_by_name(engines, ledgers["named"], chance),
        follow_completions(engines[1], ledgers["ends"]),
    ]
    if isinstance(store, PostgresTestStore):
        found += [follow_naively(store, ledgers["naive"]), kill_listeners(store, 1.0, killed)]
    return [asyncio.create_task(each) for each in found]


async def until_killed(killed: list[int], least: int) -> None:
    """Waits until so many listeners were killed while somebody read."""
    async with asyncio.timeout(60 + 2 * least):
        while len(killed) < least:  # noqa: ASYNC110 - it is done once a second
            await asyncio.sleep(0.1)


async def until_seen(ledgers: dict[str, Ledger], every: int, ends: int) -> None:
    """Waits until the readers have as many events as there are, or get no more; then the ledgers tell."""
    wanted = {"live": every, "cursors": every, "named": every, "ends": ends}
    seen, patience = -1, PATIENCE
    while patience and any(len(ledgers[name].seen) < number for name, number in wanted.items()):
        await asyncio.sleep(0.1)
        now = sum(len(ledgers[name].seen) for name in wanted)
        seen, patience = now, PATIENCE if now > seen else patience - 1
