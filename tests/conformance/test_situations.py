"""Every state can be reached by the contract, and is shown as the state table says."""

from __future__ import annotations

import pytest

from flowfabric.engine import Engine
from flowfabric.testing import VirtualClock
from tests.scenarios import SITUATIONS


@pytest.mark.parametrize("situation", SITUATIONS)
async def test_an_execution_can_be_in_this_situation(engine: Engine, clock: VirtualClock, situation: str) -> None:
    id_ = await SITUATIONS[situation](engine, clock)
    found = await engine.executions.describe(id_)
    assert found.state == situation.partition(":")[0]
    assert (found.lease is not None) == (situation in ("active", "active: lease run out"))
