"""The rows of the scoreboard: one module per fault suite, each with a constant `ROWS`."""

from __future__ import annotations

from tests.faults.rows import ownership
from tests.faults.rows.row import Row

ROWS: tuple[Row, ...] = (*ownership.ROWS,)
