"""The programs with worker processes that are killed around their records: what is recorded is never done again."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flowfabric import ExecutionFailed, Handle
from flowfabric.engine import Engine, WaitpointState, WaitpointView
from flowfabric.testing import Kit
from flowfabric.testing.deciding import decide
from tests.end_to_end.programs import (
    agent,
    external_callback,
    fan_out,
    hello,
    poller,
    polling,
    race_of_providers,
    trip,
    two_person,
)
from tests.end_to_end.programs.drives import PROGRAMS
from tests.end_to_end.programs.killed import IN_FLIGHT
from tests.end_to_end.programs.world import FILE_VARIABLE
from tests.sizes import Size
from tests.stores import PostgresTestStore, TestStore, opened

ROOT = Path(__file__).parents[3]
# Whoever is killed is followed soon; whoever follows must not lose a lease, however busy the machine is.
LEASE_TTL_S = 3
FOLLOWERS_LEASE_TTL_S = 60
PATIENCE_S = 300
AT_ONCE = 4
LOOK_S = 0.05
Answer = Callable[[Engine, WaitpointView], Awaitable[object]]


@dataclass(frozen=True)
class Life:
    """How an execution is begun, what it must come to, and how its surroundings answer what it asks. One that is not
    alone may have ended before its worker came to the record that was to kill it. A question that was in flight then
    is asked once more, so that fewer have to follow, which may show in the result."""

    begin: Callable[[], Awaitable[Handle[Any]]]
    result: object
    answer: Answer | None = None
    is_alone: bool = True
    if_repeated: object = None


async def approve(engine: Engine, asked: WaitpointView) -> None:
    who = asked.key.partition("[")[2].rstrip("]")
    await decide(engine, asked, who, "approve", "")


async def review(engine: Engine, asked: WaitpointView) -> None:
    """Wants more of the first two drafts."""
    wishes = {"approval:review[editor]": "longer", "approval:review#2[editor]": "in rhyme"}
    wish = wishes.get(asked.key)
    await decide(engine, asked, "editor", "approve" if wish is None else "reject", wish or "")


async def call_back(engine: Engine, asked: WaitpointView) -> None:
    export = json.dumps({"rows": 7, "file": "orders.csv"}).encode()
    await engine.signals.approve(asked.execution_id, asked.key, "callback", export, suffix="once", principal="test")


LIVES = {
    "two approve": Life(lambda: two_person.refund.submit("o-17"), "o-17 paid back", approve),
    "saga undone": Life(
        lambda: trip.trip.submit(["flight", "hotel", "car"]), "step_failed: book#3 failed: PermanentError: no car left"
    ),
    "saga": Life(lambda: trip.trip.submit(["flight", "hotel"]), ["flight-1", "hotel-1"]),
    "hello": Life(lambda: hello.hello.submit("world"), "Hello, world!"),
    "small fan-out": Life(lambda: fan_out.total.submit(4), 14, is_alone=False),
    "race": Life(lambda: race_of_providers.fastest.submit("why?"), "1: b answered", is_alone=False),
    "callback": Life(lambda: external_callback.export.submit("orders"), 7, call_back),
    "agent": Life(lambda: agent.agent.submit("a poem"), "a poem, longer, in rhyme", review),
    "poller": Life(lambda: poller.watch.submit("job-1"), "job-1 ready at 4", if_repeated="job-1 ready at 3"),
    "poll": Life(lambda: polling.watch.submit("job-1"), "https://files.example/job-1"),
}
MOMENTS = ("before", "after")
SWEPT = ("two approve", "saga undone")
ALWAYS = (("two approve", "before"), ("saga undone", "after"))
LATER = [(name, moment) for name in SWEPT for moment in MOMENTS if (name, moment) not in ALWAYS]


@pytest.mark.parametrize(
    ("name", "moment"), [*ALWAYS, *(pytest.param(*later, marks=pytest.mark.long) for later in LATER)]
)
async def test_a_worker_killed_at_any_record_leaves_nothing_done_twice(
    name: str, moment: str, store: TestStore, size: Size, tmp_path: Path
) -> None:
    records = await _records(name, moment)
    # In a short run at the first record on one backend, at the last on the other.
    some, all_ = {0 if store.name == "sqlite" else records - 1}, set(range(records))
    await _sweep(store, name, moment, size.of(some, all_, all_), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", [name for name in LIVES if name not in SWEPT])
async def test_the_workers_of_the_other_programs_can_be_killed_too(
    name: str, moment: str, store: TestStore, tmp_path: Path
) -> None:
    await _sweep(store, name, moment, set(range(await _records(name, moment))), tmp_path)


async def _sweep(store: TestStore, name: str, moment: str, numbers: set[int], folder: Path) -> None:
    """Lives through a death at each of these records, several side by side, each in a namespace of its own."""
    room = asyncio.Semaphore(AT_ONCE)

    async def live(number: int) -> None:
        async with room:
            await _live(store, name, {"moment": moment, "number": number}, folder / f"{number}.txt")

    async with asyncio.TaskGroup() as group:
        for number in sorted(numbers):
            group.create_task(live(number), name=f"killed {moment} record {number}")


async def _records(name: str, moment: str) -> int:
    program = PROGRAMS[name]
    async with Kit(program.app, concurrency=program.concurrency) as kit:
        await program.drive(kit)
        return kit.watch.told["after" if moment == "after" else "before"]


async def _live(store: TestStore, name: str, kill: Mapping[str, object], effects: Path) -> None:
    """Runs one execution with a worker that is to be killed, and another one after that."""
    life, app, namespace = LIVES[name], PROGRAMS[name].app, f"killed-{kill['number']}"
    async with opened(store, namespace=namespace) as engine:
        app.engines.adopt(engine)
        handle = await life.begin()
        order = {"program": name, "namespace": namespace}
        async with _answering(engine, handle, life.answer):
            was_killed = await _worked(store, engine, handle, {**order, **kill}, effects)
            assert was_killed or not life.is_alone, f"{name} was not killed {kill}"
            if was_killed:
                follower = {"moment": "never", "number": None, "lease_ttl": FOLLOWERS_LEASE_TTL_S}
                await _worked(store, engine, handle, {**order, **follower}, effects)
        result = await _result(engine, handle)
    happened, expected = _happened(effects), Counter(PROGRAMS[name].effects)
    assert result == life.result or (result == life.if_repeated and _in_flight(effects))
    assert not expected - happened
    # Only what was in flight, and so not recorded, may have been done again.
    assert (happened - expected).total() <= _in_flight(effects), (kill, happened)


async def _result(engine: Engine, handle: Handle[Any]) -> object:
    handle.app.engines.adopt(engine)
    try:
        return await handle.result(timeout=PATIENCE_S)
    except ExecutionFailed as failed:
        return failed.error.message
    finally:
        handle.app.engines.adopt(None)


@asynccontextmanager
async def _answering(engine: Engine, handle: Handle[Any], answer: Answer | None) -> AsyncIterator[None]:
    """While the block lasts, whatever the execution asks of its surroundings is answered."""

    async def look() -> None:
        while answer is not None:
            for asked in await engine.waitpoints.list(handle.id):
                if asked.state is not WaitpointState.CLOSED:
                    await answer(engine, asked)
            await asyncio.sleep(LOOK_S)

    answering = asyncio.create_task(look()) if answer is not None else None
    try:
        yield
    finally:
        if answering is not None:
            answering.cancel()
            await asyncio.wait([answering])


async def _worked(
    store: TestStore, engine: Engine, handle: Handle[Any], order: Mapping[str, object], effects: Path
) -> bool:
    """True if the worker was killed, False if the execution ended before that."""
    async with _worker(store, order, effects) as process:
        ended = asyncio.create_task(engine.executions.wait(handle.id, PATIENCE_S))
        died = asyncio.create_task(process.wait())
        await asyncio.wait({ended, died}, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if not died.done():
            return False
        assert died.result() == -signal.SIGKILL
        return True


@asynccontextmanager
async def _worker(
    store: TestStore, order: Mapping[str, object], effects: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    options: dict[str, Any] = {"durable": False, "namespace": order["namespace"]}
    if isinstance(store, PostgresTestStore):
        options["schema"] = store.schema
    told = {"url": store.url, "options": options, "lease_ttl": LEASE_TTL_S, **order}
    command = [sys.executable, "-m", "tests.end_to_end.programs.killed", json.dumps(told)]
    environment = {FILE_VARIABLE: str(effects), "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=environment)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _happened(effects: Path) -> Counter[str]:
    return Counter(effects.read_text().splitlines() if effects.exists() else ())


def _in_flight(effects: Path) -> int:
    told = Path(f"{effects}{IN_FLIGHT}")
    return int(told.read_text()) if told.exists() else 0
