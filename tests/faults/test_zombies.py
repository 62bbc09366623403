"""Test workers that are frozen until their leases are lost, and then try every write.

No write is accepted, and the store does not change.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.checker import violations
from tests.faults.fork_server import ForkServer
from tests.faults.rows.frozen_workers import REASONS, freeze_workers
from tests.sizes import Size
from tests.stores import TestStore

# The row `workers frozen` is the short form.
pytestmark = [pytest.mark.alone, pytest.mark.long]


async def test_zombies_change_nothing(
    store: TestStore, tmp_path: Path, forks: ForkServer, scoreboard: Callable[[str], None], size: Size
) -> None:
    waves, width, least = size.of((1, 12, 80), (10, 20, 1000), (50, 20, 5000))
    report = await freeze_workers(store, tmp_path / "run", forks, waves=waves, width=width)
    tried = report.stale_writes
    accepted = [line for line in tried if line["what"] == "accepted"]
    scoreboard(f"{report.zombies} zombies, {len(tried)} stale writes (at least {least}), {len(accepted)} accepted")
    assert accepted == []
    assert report.changes == []
    assert violations(report.findings) == []
    assert len(tried) >= least
    assert {line["code"] for line in tried if "code" in line} <= REASONS
