"""SQLite, PostgreSQL and a small reference model are driven side by side, under one clock, through every operation in
any order, and must agree on every answer, every refusal and every stored row.

`reference.py` is the model, the specification restated without the engine's decisions: `working.py`, `operating.py`,
`waiting.py`, `signalling.py` and `ringing.py` are its operations, `world.py`, `records.py` and `waits.py` what it
remembers. `sides.py` drives the stores; `machines.py` draws among the moves of `rules.py`, `together.py` and
`wait_moves.py`; `stage.py` makes one move on all sides and checks what must hold afterwards: equal answers, equal rows
(`projection.py`), and the invariants of the reliability reference on the rows alone (`invariants.py`,
`wait_invariants.py`). Every fence and token that was ever handed out is kept and presented again, long after it was
lost. Time stands still unless a move advances it, to the microsecond before something is due and to the microsecond of
it; only ids are random, and compared by the order in which they appear.

A failure is shrunk by Hypothesis to a short program of moves, printed with the blob that repeats it. A plain run draws
the same examples every time; a full one draws others every time, for about twenty seconds with each machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machines import Beginning, Machine, WaitingMachine
from tests.model.sides import Sides, open_sides
from tests.postgres_server import PostgresServer
from tests.sizes import Size

STEPS = 30
# Hypothesis makes five near copies of every example beyond the first ten of a run, so many short runs see more.
EXAMPLES = 10


@pytest.fixture
def sides(postgres: PostgresServer, tmp_path: Path) -> Iterator[Sides]:
    """Both stores, opened once: an example empties them."""
    loop = asyncio.new_event_loop()
    opened = loop.run_until_complete(open_sides(loop, tmp_path, postgres.dsn))
    yield opened
    loop.run_until_complete(opened.close())
    loop.close()


@pytest.mark.parametrize("machine", [Machine, WaitingMachine])
def test_both_stores_and_the_model_agree_whatever_happens(
    sides: Sides, size: Size, machine: type[Beginning], scoreboard: Callable[[str], None]
) -> None:  # fmt: skip
    examples = EXAMPLES * size.of(1, 4, 1)
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    chosen = settings(
        max_examples=examples, stateful_step_count=STEPS, deadline=None, print_blob=True, suppress_health_check=checks,
        derandomize=size.name != "long", report_multiple_bugs=False,
        phases=[phase for phase in Phase if phase is not Phase.explain],
    )  # fmt: skip

    class OnTheseSides(machine):  # type: ignore[valid-type, misc]
        def __init__(self) -> None:
            super().__init__(sides)

    seconds, began, runs = size.of(0.0, 0.0, 600.0), time.monotonic(), 0
    while not runs or time.monotonic() - began < seconds:
        run_state_machine_as_test(OnTheseSides, settings=chosen)
        runs += 1
    scoreboard(f"{machine.__name__}: {runs} x {examples} x {STEPS} moves agree")
