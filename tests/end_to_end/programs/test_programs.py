"""The programs return the same results with replays, repeated signals and a crash at every record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowfabric.testing import Kit, sweep
from flowfabric.testing.hooks import Replay
from tests.end_to_end.programs.effects import recorded_effects
from tests.end_to_end.programs.program_cases import PROGRAMS, Program
from tests.stores import PostgresTestStore, TestStore

pytestmark = pytest.mark.full

MAX_LINES = {
    "hello": 7, "two_person": 10, "external_callback": 14, "race_of_providers": 15, "fan_out": 8, "trip": 16,
    "agent": 15, "poller": 12, "polling": 9,
}  # fmt: skip


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> Program:
    del recorded_effects[:]
    return PROGRAMS[request.param]


def make_kit(program: Program, store: TestStore, replay: Replay | None = None) -> Kit:
    options: dict[str, Any] = {"schema": store.schema} if isinstance(store, PostgresTestStore) else {}
    return Kit(program.app, store.url, replay=replay, concurrency=program.concurrency, durable=False, **options)


async def test_program_has_the_expected_result_and_effects(program: Program, store: TestStore) -> None:
    async with make_kit(program, store) as kit:
        assert await program.drive(kit) == program.result
    assert program.has_expected_effects(recorded_effects)


@pytest.mark.parametrize("replay", ["suspensions", "every record"])
async def test_replays_do_not_change_results_or_effects(program: Program, store: TestStore, replay: Replay) -> None:
    async with Kit(program.app, concurrency=program.concurrency) as plain:
        await program.drive(plain)
    del recorded_effects[:]
    async with make_kit(program, store, replay) as kit:
        assert await program.drive(kit) == program.result
    assert program.has_expected_effects(recorded_effects)
    assert kit.hooks.runs > plain.hooks.runs or replay == "suspensions"


async def test_duplicate_signals_count_once(program: Program, store: TestStore) -> None:
    async with make_kit(program, store) as kit:
        kit.duplicate_delivery()
        assert await program.drive(kit) == program.result
    assert program.has_expected_effects(recorded_effects)


SWEPT = [name for name in PROGRAMS if name not in ("fan-out", "poll")]
# The other programs are swept in long runs only.
ALWAYS_SWEPT = ("hello", "two approvals", "saga compensated", "callback")


@pytest.mark.parametrize(
    "name", [name if name in ALWAYS_SWEPT else pytest.param(name, marks=pytest.mark.long) for name in SWEPT]
)
async def test_crash_at_any_record_does_not_change_the_result(name: str, store: TestStore) -> None:
    program = PROGRAMS[name]
    report = await sweep(lambda replay: make_kit(program, store, replay), program.drive, effects=recorded_effects)
    assert report.result == program.result
    assert report.crashes > 0


@pytest.mark.parametrize(("name", "max_lines"), MAX_LINES.items())
def test_program_is_short(name: str, max_lines: int) -> None:
    lines = (Path(__file__).parent / f"{name}.py").read_text().splitlines()
    code_lines = [line for line in lines if line.strip() and not line.startswith(("#", "from tests."))]
    assert len(code_lines) <= max_lines
