"""SQLite, PostgreSQL and a small reference model run the same random calls under one clock. They must agree on every
outcome, every refusal and every stored row.

- `reference.py` is the model, written from the specification and independent of the engine's code. `leases_model.py`,
  `operator_model.py`, `waits_model.py`, `signals_model.py` and `keys_model.py` are its operations. `world.py`,
  `records.py` and `wait_records.py` are its state.
- `stores.py` drives the stores. `machines.py` draws among the moves of `rules.py`, `batch_moves.py` and
  `wait_moves.py`. `ownership_moves.py` has the moves of worker processes that lose replies.
- `checks.py` makes each call on both stores and the model. It then checks that the outcomes and the rows
  (`projection.py`) are equal. It also checks that the stored rows satisfy the invariants of the reliability reference
  (`invariants.py`, `wait_invariants.py`).

Every fence and token that was ever returned is kept and presented again, long after it was lost. Time passes only when
a move advances the clock, sometimes exactly to a due time or to the microsecond before it. Only ids are random, and
the tests compare them by the order in which they appear.

Hypothesis shrinks a failure to a short program of moves and prints the blob that repeats it. A normal run draws the
same examples every time. A full run draws different examples, for about twenty seconds with each machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.checks import BaseMachine
from tests.model.machines import Machine, OwnershipMachine, WaitingMachine
from tests.model.stores import Sides, open_sides
from tests.postgres_server import PostgresServer
from tests.sizes import Size

# After the first ten examples of a run, Hypothesis mutates each new example five times. Many short runs therefore cover
# more than a few long runs.
EXAMPLES = 10


@pytest.fixture
def sides(postgres: PostgresServer, tmp_path: Path) -> Iterator[Sides]:
    """Open both stores once. Each example empties them."""
    loop = asyncio.new_event_loop()
    open_stores = loop.run_until_complete(open_sides(loop, tmp_path, postgres.dsn))
    yield open_stores
    loop.run_until_complete(open_stores.close())
    loop.close()


@pytest.mark.parametrize("machine", [Machine, WaitingMachine, OwnershipMachine])
def test_both_stores_and_the_model_agree_on_random_histories(
    sides: Sides, size: Size, machine: type[BaseMachine], scoreboard: Callable[[str], None]
) -> None:
    examples = EXAMPLES * size.of(1, 4, 1)
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    run_settings = settings(
        max_examples=examples,
        stateful_step_count=machine.steps,
        deadline=None,
        print_blob=True,
        suppress_health_check=checks,
        derandomize=size.name != "long",
        report_multiple_bugs=False,
        phases=[phase for phase in Phase if phase not in machine.skipped_phases],
    )

    class BoundMachine(machine):  # type: ignore[valid-type, misc]
        def __init__(self) -> None:
            super().__init__(sides)

    seconds, began, runs = size.of(0.0, 0.0, 600.0), time.monotonic(), 0
    while not runs or time.monotonic() - began < seconds:
        run_state_machine_as_test(BoundMachine, settings=run_settings)
        runs += 1
    scoreboard(f"{machine.__name__}: {runs} x {examples} x {machine.steps} moves agree")
