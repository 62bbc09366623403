"""Tests that every state can be reached through the API and has the public state of the state table."""

from __future__ import annotations

import pytest

from flowfabric.engine import Engine
from flowfabric.testing import VirtualClock
from tests.scenarios import SITUATIONS

PUBLIC_STATES = {
    "waiting: resumable": "resumable",
    "waiting: resumed": "resumable",
    "blocked: held": "waiting",
}


@pytest.mark.parametrize("situation", SITUATIONS)
async def test_every_situation_can_be_reached(engine: Engine, clock: VirtualClock, situation: str) -> None:
    id_ = await SITUATIONS[situation](engine, clock)
    execution = await engine.executions.describe(id_)
    assert execution.state == situation.partition(":")[0]
    assert (execution.lease is not None) == (situation in ("active", "active: lease run out"))


async def test_every_path_shows_its_public_state_and_outcome(engine: Engine, clock: VirtualClock) -> None:
    for situation, reach in SITUATIONS.items():
        execution = await engine.executions.describe(await reach(engine, clock))
        state = situation.partition(":")[0]
        assert execution.vector.public_state == PUBLIC_STATES.get(situation, state), situation
        outcome = {"completed": "success"}.get(state, state) if execution.state.is_terminal else "none"
        assert execution.vector.terminal_outcome == outcome, situation
        assert (execution.ended_at is not None) == execution.state.is_terminal, situation
