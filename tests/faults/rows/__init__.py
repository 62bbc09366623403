"""The rows of the scoreboard: one module per fault suite, each with a constant `ROWS`."""

from __future__ import annotations

from tests.faults.rows import (
    blocked_leases,
    clock_jumps,
    connection_resets,
    connections,
    emptied_tables,
    failovers,
    frozen_workers,
    killed_workers,
    lent_connections,
    ownership,
    random_signals,
    replaced_files,
    server_outages,
    signal_backlogs,
)
from tests.faults.rows.row import Row

_SUITES = (
    clock_jumps,
    killed_workers,
    frozen_workers,
    server_outages,
    ownership,
    connection_resets,
    connections,
    failovers,
    emptied_tables,
    blocked_leases,
    lent_connections,
    random_signals,
    replaced_files,
    signal_backlogs,
)
ROWS: tuple[Row, ...] = tuple(row for suite in _SUITES for row in suite.ROWS)
