"""The short form of every measurement of what is not promised."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.rows.row import Backend, Trial
from tests.faults.rows.unpromised import MEASUREMENTS, Measurement
from tests.postgres_server import PostgresServer
from tests.sizes import Size


@pytest.mark.long(sample=4)
@pytest.mark.parametrize(
    ("measurement", "backend"),
    [pytest.param(item, backend, id=f"{item.unit}-{backend}") for item in MEASUREMENTS for backend in item.backends],
)
async def test_measurement_has_a_result(
    measurement: Measurement,
    backend: Backend,
    postgres: PostgresServer,
    tmp_path: Path,
    scoreboard: Callable[[str], None],
    size: Size,
) -> None:
    measured = await measurement.measure(Trial(backend, measurement.short_size, size.seed, tmp_path, postgres.dsn))
    scoreboard(f"{measurement.name}: {measured.summary}")
    assert measured.values
