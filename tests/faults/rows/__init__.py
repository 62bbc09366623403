"""The rows of the scoreboard: one module per fault suite, each with a constant `ROWS`."""

from __future__ import annotations

from tests.faults.rows import (
    blackouts,
    blocked_leases,
    cancels,
    changed_code,
    clock_jumps,
    connection_resets,
    connections,
    emptied_tables,
    failovers,
    frozen_workers,
    killed_workers,
    lent_connections,
    mixed_soak,
    ownership,
    processes,
    random_signals,
    replaced_files,
    rolling_deployments,
    server_outages,
    signal_backlogs,
    unusual_code,
    vanished_hosts,
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
    vanished_hosts,
    blackouts,
    mixed_soak,
    processes,
    cancels,
    rolling_deployments,
    changed_code,
    unusual_code,
    signal_backlogs,
)
ROWS: tuple[Row, ...] = tuple(row for suite in _SUITES for row in suite.ROWS)
