"""The rows of the scoreboard: one module per fault suite, each with a constant `ROWS`."""

from __future__ import annotations

from tests.faults.rows import clock_jumps, frozen_workers, killed_workers, server_outages
from tests.faults.rows.row import Row

_SUITES = (
    clock_jumps,
    killed_workers,
    frozen_workers,
    server_outages,
)
ROWS: tuple[Row, ...] = tuple(row for suite in _SUITES for row in suite.ROWS)
