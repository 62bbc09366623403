"""The programs come to the same whatever happens on the way: replays, and a crash at every record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowfabric.testing import Kit, sweep
from flowfabric.testing.watching import Replay
from tests.end_to_end.programs.drives import PROGRAMS, Program
from tests.end_to_end.programs.world import happened
from tests.stores import PostgresTestStore, TestStore

LENGTHS = {
    "hello": 7, "two_person": 10, "external_callback": 14, "race_of_providers": 15, "fan_out": 8, "trip": 16,
    "agent": 15, "poller": 12, "polling": 9,
}  # fmt: skip


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> Program:
    del happened[:]
    return PROGRAMS[request.param]


def kit_of(program: Program, store: TestStore, replay: Replay | None = None) -> Kit:
    options: dict[str, Any] = {"schema": store.schema} if isinstance(store, PostgresTestStore) else {}
    return Kit(program.app, store.url, replay=replay, concurrency=program.concurrency, durable=False, **options)


async def test_a_program_does_what_it_says(program: Program, store: TestStore) -> None:
    async with kit_of(program, store) as kit:
        assert await program.drive(kit) == program.result
    assert program.has_happened(happened)


@pytest.mark.parametrize("replay", ["suspensions", "every record"])
async def test_replays_change_nothing(program: Program, store: TestStore, replay: Replay) -> None:
    async with Kit(program.app, concurrency=program.concurrency) as plain:
        await program.drive(plain)
    del happened[:]
    async with kit_of(program, store, replay) as kit:
        assert await program.drive(kit) == program.result
    assert program.has_happened(happened)
    assert kit.watch.runs > plain.watch.runs or replay == "suspensions"


async def test_signals_that_come_twice_count_once(program: Program, store: TestStore) -> None:
    async with kit_of(program, store) as kit:
        kit.duplicate_delivery()
        assert await program.drive(kit) == program.result
    assert program.has_happened(happened)


SWEPT = [name for name in PROGRAMS if name not in ("fan-out", "poll")]
# The others are swept at full size.
ALWAYS_SWEPT = ("hello", "two approve", "saga undone", "callback")


@pytest.mark.parametrize(
    "name", [name if name in ALWAYS_SWEPT else pytest.param(name, marks=pytest.mark.long) for name in SWEPT]
)
async def test_a_crash_at_any_record_changes_nothing(name: str, store: TestStore) -> None:
    program = PROGRAMS[name]
    swept = await sweep(lambda replay: kit_of(program, store, replay), program.drive, effects=happened)
    assert swept.result == program.result
    assert swept.crashes > 0


@pytest.mark.parametrize(("name", "most"), LENGTHS.items())
def test_a_program_is_short(name: str, most: int) -> None:
    lines = (Path(__file__).parent / f"{name}.py").read_text().splitlines()
    counted = [line for line in lines if line.strip() and not line.startswith(("#", "from tests."))]
    assert len(counted) <= most
