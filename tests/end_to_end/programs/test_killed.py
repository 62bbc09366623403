"""Worker processes are killed around their records; a replacement never repeats recorded work."""

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
from flowfabric.testing.decisions import decide
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
from tests.end_to_end.programs.effects import FILE_VARIABLE
from tests.end_to_end.programs.killed_worker import IN_FLIGHT
from tests.end_to_end.programs.program_cases import PROGRAMS
from tests.sizes import Size
from tests.stores import PostgresTestStore, TestStore, opened

ROOT = Path(__file__).parents[3]
# Long enough for a worker to keep its lease on a busy machine. When a worker is killed, the test expires its leases by
# EXPIRE_LEASES.
LEASE_TTL_S = 60
RESULT_TIMEOUT_S = 300
MAX_CONCURRENT_CASES = 4
POLL_INTERVAL_S = 0.05
EXPIRE_LEASES = """
    UPDATE ff.execution
    SET lease_expires_at = lease_acquired_at, lease_check_at = lease_acquired_at
    WHERE namespace = ? AND lease_id IS NOT NULL
"""
Responder = Callable[[Engine, WaitpointView], Awaitable[object]]


@dataclass(frozen=True)
class KilledCase:
    """How to submit an execution, its expected result, and the function that responds to its waitpoints.

    If `always_killed` is False, the execution may end before its worker reaches the record at which it would be killed.
    `result_if_repeated` is the result if a poll was in flight at the kill and was therefore made twice.
    """

    submit: Callable[[], Awaitable[Handle[Any]]]
    result: object
    respond: Responder | None = None
    always_killed: bool = True
    result_if_repeated: object = None


async def approve(engine: Engine, waitpoint: WaitpointView) -> None:
    approver = waitpoint.key.partition("[")[2].rstrip("]")
    await decide(engine, waitpoint, approver, "approve", "")


async def review(engine: Engine, waitpoint: WaitpointView) -> None:
    """Reject the first two drafts with a wish, then approve."""
    wishes = {"approval:review[editor]": "longer", "approval:review#2[editor]": "in rhyme"}
    wish = wishes.get(waitpoint.key)
    await decide(engine, waitpoint, "editor", "approve" if wish is None else "reject", wish or "")


async def call_back(engine: Engine, waitpoint: WaitpointView) -> None:
    export = json.dumps({"rows": 7, "file": "orders.csv"}).encode()
    await engine.signals.approve(
        waitpoint.execution_id, waitpoint.key, "callback", export, suffix="once", principal="test"
    )


CASES = {
    "two approvals": KilledCase(lambda: two_person.refund.submit("o-17"), "o-17 paid back", approve),
    "saga compensated": KilledCase(
        lambda: trip.trip.submit(["flight", "hotel", "car"]), "step_failed: book#3 failed: PermanentError: no car left"
    ),
    "saga": KilledCase(lambda: trip.trip.submit(["flight", "hotel"]), ["flight-1", "hotel-1"]),
    "hello": KilledCase(lambda: hello.hello.submit("world"), "Hello, world!"),
    "small fan-out": KilledCase(lambda: fan_out.total.submit(4), 14, always_killed=False),
    "race": KilledCase(lambda: race_of_providers.fastest.submit("why?"), "1: b answered", always_killed=False),
    "callback": KilledCase(lambda: external_callback.export.submit("orders"), 7, call_back),
    "agent": KilledCase(lambda: agent.agent.submit("a poem"), "a poem, longer, in rhyme", review),
    "poller": KilledCase(
        lambda: poller.watch.submit("job-1"), "job-1 ready at 4", result_if_repeated="job-1 ready at 3"
    ),
    "poll": KilledCase(lambda: polling.watch.submit("job-1"), "https://files.example/job-1"),
}
MOMENTS = ("before", "after")
SWEPT = ("two approvals", "saga compensated")
SHORT_RUN_CASES = (("two approvals", "before"), ("saga compensated", "after"))
LONG_RUN_CASES = [(name, moment) for name in SWEPT for moment in MOMENTS if (name, moment) not in SHORT_RUN_CASES]


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "moment"), [*SHORT_RUN_CASES, *(pytest.param(*case, marks=pytest.mark.long) for case in LONG_RUN_CASES)]
)
async def test_replacement_of_a_killed_worker_repeats_no_recorded_step(
    name: str, moment: str, store: TestStore, size: Size, tmp_path: Path
) -> None:
    record_count = await _count_records(name, moment)
    # A short run kills at the first record on one backend and at the last on the other.
    first_or_last, every_record = {0 if store.name == "sqlite" else record_count - 1}, set(range(record_count))
    await _sweep(store, name, moment, size.of(first_or_last, every_record, every_record), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", [name for name in CASES if name not in SWEPT])
async def test_replacement_of_a_killed_worker_finishes_the_other_programs(
    name: str, moment: str, store: TestStore, tmp_path: Path
) -> None:
    await _sweep(store, name, moment, set(range(await _count_records(name, moment))), tmp_path)


async def _sweep(store: TestStore, name: str, moment: str, numbers: set[int], folder: Path) -> None:
    """Kill a worker at each of these records, several cases concurrently, each in its own namespace."""
    semaphore = asyncio.Semaphore(MAX_CONCURRENT_CASES)

    async def run_case(number: int) -> None:
        async with semaphore:
            await _run_case(store, name, {"moment": moment, "number": number}, folder / f"{number}.txt")

    async with asyncio.TaskGroup() as group:
        for number in sorted(numbers):
            group.create_task(run_case(number), name=f"killed {moment} record {number}")


async def _count_records(name: str, moment: str) -> int:
    program = PROGRAMS[name]
    async with Kit(program.app, concurrency=program.concurrency) as kit:
        await program.drive(kit)
        return kit.hooks.record_counts["after" if moment == "after" else "before"]


async def _run_case(store: TestStore, name: str, kill: Mapping[str, object], effects: Path) -> None:
    """Run one execution with a worker that is killed, then with a replacement."""
    case, app, namespace = CASES[name], PROGRAMS[name].app, f"killed-{kill['number']}"
    async with opened(store, namespace=namespace) as engine:
        app.engines.adopt(engine)
        handle = await case.submit()
        config = {"program": name, "namespace": namespace}
        async with _responding(engine, handle, case.respond):
            was_killed = await _run_worker(store, engine, handle, {**config, **kill}, effects, case.always_killed)
            if was_killed:
                await store.query(EXPIRE_LEASES, namespace)
                await _run_worker(store, engine, handle, {**config, "moment": "never", "number": None}, effects)
        result = await _result(engine, handle)
    effect_counts, expected = _count_effects(effects), Counter(PROGRAMS[name].effects)
    assert result == case.result or (result == case.result_if_repeated and _read_in_flight(effects))
    assert not expected - effect_counts
    # Only the steps that were in flight at the kill have no record, so only these may have run twice.
    assert (effect_counts - expected).total() <= _read_in_flight(effects), (kill, effect_counts)


async def _result(engine: Engine, handle: Handle[Any]) -> object:
    handle.app.engines.adopt(engine)
    try:
        return await handle.result(timeout=RESULT_TIMEOUT_S)
    except ExecutionFailed as error:
        return error.error.message
    finally:
        handle.app.engines.adopt(None)


@asynccontextmanager
async def _responding(engine: Engine, handle: Handle[Any], respond: Responder | None) -> AsyncIterator[None]:
    """Respond to the open waitpoints of the execution while the block runs."""

    async def respond_to_waitpoints() -> None:
        while respond is not None:
            for waitpoint in await engine.waitpoints.list(handle.id):
                if waitpoint.state is not WaitpointState.CLOSED:
                    await respond(engine, waitpoint)
            await asyncio.sleep(POLL_INTERVAL_S)

    responder = asyncio.create_task(respond_to_waitpoints()) if respond is not None else None
    try:
        yield
    finally:
        if responder is not None:
            responder.cancel()
            await asyncio.wait([responder])


async def _run_worker(
    store: TestStore,
    engine: Engine,
    handle: Handle[Any],
    config: Mapping[str, object],
    effects: Path,
    must_die: bool = False,
) -> bool:
    """Return True if the worker was killed, False if the execution ended first.

    If `must_die`, wait for the kill even after the execution has ended, because the last record can be stored together
    with that end.
    """
    async with _worker(store, config, effects) as process:
        ended = asyncio.create_task(engine.executions.wait(handle.id, RESULT_TIMEOUT_S))
        died = asyncio.create_task(process.wait())
        awaited = {died} if must_die else {ended, died}
        await asyncio.wait(awaited, timeout=RESULT_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if not died.done():
            assert not must_die, f"the worker was not killed: {config}"
            return False
        assert died.result() == -signal.SIGKILL
        return True


@asynccontextmanager
async def _worker(
    store: TestStore, config: Mapping[str, object], effects: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    options: dict[str, Any] = {"durable": False, "namespace": config["namespace"]}
    if isinstance(store, PostgresTestStore):
        options["schema"] = store.schema
    arguments = {"url": store.url, "options": options, "lease_ttl": LEASE_TTL_S, **config}
    command = [sys.executable, "-m", "tests.end_to_end.programs.killed_worker", json.dumps(arguments)]
    environment = {FILE_VARIABLE: str(effects), "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=environment)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _count_effects(effects: Path) -> Counter[str]:
    return Counter(effects.read_text().splitlines() if effects.exists() else ())


def _read_in_flight(effects: Path) -> int:
    counter_file = Path(f"{effects}{IN_FLIGHT}")
    return int(counter_file.read_text()) if counter_file.exists() else 0
