"""The short form of every row of the scoreboard: faults are injected, and nothing is lost, doubled, wrong or stuck."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.faults.rows import ROWS
from tests.faults.rows.row import Backend, Row, Trial
from tests.faults.scoreboard.results import Line
from tests.postgres_server import PostgresServer
from tests.sizes import Size


@pytest.mark.parametrize(
    ("row", "backend"),
    [pytest.param(row, backend, id=f"{row.name}-{backend}") for row in ROWS for backend in row.backends],
)
async def test_row_of_the_scoreboard_has_no_violation(
    row: Row,
    backend: Backend,
    postgres: PostgresServer,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
    size: Size,
) -> None:
    tally = await row.run(Trial(backend, row.short_minimum, size.seed, tmp_path, postgres.dsn))
    record_property("scoreboard line", json.dumps(asdict(Line.of(row, backend, tally, row.short_minimum))))
    assert tally.violations == []
    assert tally.injected >= row.short_minimum
