"""The programs with worker processes that are killed around their records: what is recorded is never done again."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flowfabric import Handle
from flowfabric.engine import Engine
from flowfabric.testing import Kit
from flowfabric.testing.deciding import decide, open_approval
from tests.end_to_end.programs import fan_out, hello, race_of_providers, trip, two_person
from tests.end_to_end.programs.drives import PROGRAMS
from tests.end_to_end.programs.killed import IN_FLIGHT
from tests.end_to_end.programs.world import FILE_VARIABLE
from tests.sizes import Size
from tests.stores import PostgresTestStore, TestStore, opened

ROOT = Path(__file__).parents[3]
LEASE_TTL_S = 3
PATIENCE_S = 120


@dataclass(frozen=True)
class Life:
    """How an execution is begun, and what its surroundings do whenever it rests."""

    begin: Callable[[], Awaitable[Handle[Any]]]
    answer: Callable[[Engine, Handle[Any]], Awaitable[None]] | None = None


async def both_approve(engine: Engine, handle: Handle[Any]) -> None:
    for who in ("ops", "finance"):
        await decide(engine, await open_approval(engine, handle.id, "refund", who), who, "approve", "")


LIVES = {
    "two approve": Life(lambda: two_person.refund.submit("o-17"), both_approve),
    "saga undone": Life(lambda: trip.trip.submit(["flight", "hotel", "car"])),
    "saga": Life(lambda: trip.trip.submit(["flight", "hotel"])),
    "hello": Life(lambda: hello.hello.submit("world")),
    "fan-out": Life(lambda: fan_out.total.submit(100)),
    "race": Life(lambda: race_of_providers.fastest.submit("why?")),
}


ALWAYS = (("two approve", "before"), ("saga undone", "after"))
OTHERS = [(name, moment) for name in LIVES for moment in ("after", "before") if (name, moment) not in ALWAYS]


@pytest.mark.parametrize(
    ("name", "moment"), [*ALWAYS, *(pytest.param(*other, marks=pytest.mark.long) for other in OTHERS)]
)
async def test_a_killed_worker_leaves_nothing_done_twice(
    name: str, moment: str, store: TestStore, size: Size, tmp_path: Path
) -> None:
    records = await _records(name, moment)
    numbers = size.of({0, records - 1}, set(range(records)), set(range(records)))
    for number in sorted(numbers):
        effects = tmp_path / f"{number}.txt"
        await _live(store, name, {"moment": moment, "number": number}, effects)
        happened, expected = _happened(effects), Counter(PROGRAMS[name].effects)
        assert not expected - happened
        # Only what was in flight, and so not recorded, may have been done again.
        assert (happened - expected).total() <= _in_flight(effects), (number, happened)


def _happened(effects: Path) -> Counter[str]:
    return Counter(effects.read_text().splitlines() if effects.exists() else ())


def _in_flight(effects: Path) -> int:
    told = Path(f"{effects}{IN_FLIGHT}")
    return int(told.read_text()) if told.exists() else 0


async def _records(name: str, moment: str) -> int:
    program = PROGRAMS[name]
    async with Kit(program.app, concurrency=program.concurrency) as kit:
        await program.drive(kit)
        return kit.watch.told["after" if moment == "after" else "before"]


async def _live(store: TestStore, name: str, kill: Mapping[str, object], effects: Path) -> None:
    """Runs one execution with a worker that is to be killed, and another one after that."""
    life, app = LIVES[name], PROGRAMS[name].app
    async with opened(store) as engine:
        app.engines.adopt(engine)
        try:
            handle = await life.begin()
            for order in (kill, {"moment": "never", "number": None}):
                if await _worked(store, engine, handle, {"program": name, **order}, effects):
                    break
            assert (await engine.executions.result(handle.id)) is not None
        finally:
            app.engines.adopt(None)


async def _worked(
    store: TestStore, engine: Engine, handle: Handle[Any], order: Mapping[str, object], effects: Path
) -> bool:
    """True when the execution has ended, False when the worker has."""
    answer = LIVES[str(order["program"])].answer
    async with _worker(store, order, effects) as process:
        assert process.stdout is not None, "asked for as a pipe"
        ended = asyncio.create_task(engine.executions.wait(handle.id, PATIENCE_S))
        while not ended.done():
            line = asyncio.create_task(process.stdout.readline())
            await asyncio.wait({ended, line}, return_when=asyncio.FIRST_COMPLETED)
            if not line.done():
                line.cancel()
            elif not line.result():
                ended.cancel()
                return (await engine.executions.result(handle.id)) is not None
            elif answer is not None:
                await answer(engine, handle)
        return ended.result() is not None


@asynccontextmanager
async def _worker(
    store: TestStore, order: Mapping[str, object], effects: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    options: dict[str, Any] = {"durable": False}
    if isinstance(store, PostgresTestStore):
        options["schema"] = store.schema
    told = {"url": store.url, "options": options, "lease_ttl": LEASE_TTL_S, **order}
    command = [sys.executable, "-m", "tests.end_to_end.programs.killed", json.dumps(told)]
    environment = {FILE_VARIABLE: str(effects), "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=PIPE, env=environment)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
