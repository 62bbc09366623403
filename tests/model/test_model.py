"""SQLite, PostgreSQL and a small reference model are driven side by side, under one clock, through every operation in
any order, and must agree on every answer, every refusal and every stored row.

`reference.py` (with `working.py`, `operating.py`, `world.py`, `records.py`) is the model: the specification restated
without the engine's decisions. `sides.py` drives the stores, `rules.py` are the moves, `stage.py` makes one move on all
sides and checks what must hold afterwards: equal answers, equal rows (`projection.py`), and the invariants of the
reliability reference on the rows alone (`invariants.py`). Every fence that was ever handed out is kept and presented
again, long after it was lost. Time stands still unless a move advances it, to the microsecond before something is due
and to the microsecond of it; only ids are random, and compared by the order in which they appear.

A failure is shrunk by Hypothesis to a short program of moves, printed with the blob that repeats it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.rules import Machine
from tests.model.sides import Sides, open_sides
from tests.postgres_server import PostgresServer

STEPS = 30
# Hypothesis makes five near copies of every example beyond the first ten of a run, so many short runs see more.
EXAMPLES = 10
RUNS = 3
MORE = 20


@pytest.fixture
def sides(postgres: PostgresServer, tmp_path: Path) -> Iterator[Sides]:
    """Both stores, opened once: an example empties them."""
    loop = asyncio.new_event_loop()
    opened = loop.run_until_complete(open_sides(loop, tmp_path, postgres.dsn))
    yield opened
    loop.run_until_complete(opened.close())
    loop.close()


def test_both_stores_and_the_model_agree_whatever_happens(sides: Sides, run_all: bool) -> None:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    chosen = settings(
        max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, print_blob=True, suppress_health_check=checks,
        report_multiple_bugs=False, phases=[phase for phase in Phase if phase is not Phase.explain],
    )  # fmt: skip

    class OnTheseSides(Machine):
        def __init__(self) -> None:
            super().__init__(sides)

    for _ in range(RUNS * (MORE if run_all else 1)):
        run_state_machine_as_test(OnTheseSides, settings=chosen)
