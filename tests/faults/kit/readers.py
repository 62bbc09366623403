"""Readers of a store under faults: subscribers to its events, and a client that reads acknowledged executions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from flowfabric.engine import Engine, FlowFabricError, NotFound, Unavailable
from tests.faults.rows.row import Tally

PATIENCE_S = 30.0
SUBSCRIBERS = {"live": None, "named": "billing"}


@asynccontextmanager
async def subscribed(engine: Engine) -> AsyncIterator[dict[str, set[UUID]]]:
    """Read completion events with a live and a named subscriber, and yield the executions that each has seen ended."""
    received: dict[str, set[UUID]] = {who: set() for who in SUBSCRIBERS}

    async def read(who: str, ready: asyncio.Event) -> None:
        start = "now"
        while True:
            try:
                async with engine.events.subscribe(["completion"], name=SUBSCRIBERS[who], start=start) as events:
                    ready.set()
                    async for event in events:
                        assert event.execution_id is not None, "only executions complete"
                        received[who].add(event.execution_id)
            except (NotFound, Unavailable):
                # The name was removed, or there was no table. The reader gets an error, and begins again.
                start = "beginning"
                await asyncio.sleep(0.01)

    ready = [asyncio.Event() for _ in SUBSCRIBERS]
    tasks = [asyncio.create_task(read(who, event)) for who, event in zip(SUBSCRIBERS, ready, strict=True)]
    for event in ready:
        await event.wait()
    try:
        yield received
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def missed_events(received: dict[str, set[UUID]], expected: set[UUID], when: str) -> list[str]:
    """Wait until each subscriber has received all expected ends, and return a sentence for each that it missed."""
    deadline = time.monotonic() + PATIENCE_S
    while any(expected - seen for seen in received.values()):
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(0.01)
    return [
        f"the {who} subscriber missed the end of {id_} {when}"
        for who, seen in received.items()
        for id_ in expected - seen
    ]


async def read_all(engine: Engine, kinds: dict[UUID, str], tally: Tally) -> None:
    """Describe and explain acknowledged executions, and count those that are gone or cannot be read."""
    for id_, kind in kinds.items():
        try:
            await engine.executions.describe(id_)
            await engine.operator.explain(id_)
        except FlowFabricError as error:
            tally.lost.append(f"{kind} {id_} was acknowledged, and is gone: {error}")
        except Exception as error:
            tally.wrong.append(f"describe or explain of {kind} {id_} raised {error!r}")
