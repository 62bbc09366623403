"""The short form of every row of the scoreboard: the faults are injected, and nothing is lost, doubled or stuck."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.rows import ROWS
from tests.faults.rows.row import Backend, Row, Trial
from tests.postgres_server import PostgresServer
from tests.sizes import Size


@pytest.mark.parametrize(
    ("row", "backend"),
    [pytest.param(row, backend, id=f"{row.name}-{backend}") for row in ROWS for backend in row.backends],
)
async def test_row_of_the_scoreboard_has_no_violation(
    row: Row, backend: Backend, postgres: PostgresServer, tmp_path: Path, scoreboard: Callable[[str], None], size: Size
) -> None:
    tally = await row.run(Trial(backend, row.short_minimum, size.seed, tmp_path, postgres.dsn))
    scoreboard(f"{tally.injected} faults (at least {row.short_minimum}), {tally.executions} executions")
    assert tally.violations == []
    assert tally.injected >= row.short_minimum
