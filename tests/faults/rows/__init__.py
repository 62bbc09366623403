"""The rows of the scoreboard: one module per fault suite, each with a constant `ROWS`."""

from __future__ import annotations

from tests.faults.rows import frozen_workers, killed_workers, replaced_files, server_outages
from tests.faults.rows.row import Row

_SUITES = (
    killed_workers,
    frozen_workers,
    server_outages,
    replaced_files,
)
ROWS: tuple[Row, ...] = tuple(row for suite in _SUITES for row in suite.ROWS)
