"""`engine.find_damage` reports every violated invariant, and nothing about a sound store."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowfabric.engine import Engine, InvalidRequest, Step
from flowfabric.engine.opener import restore_backup
from flowfabric.store.checks import INVARIANTS
from flowfabric.testing import VirtualClock
from tests.flows import built
from tests.scenarios import SITUATIONS, leased, suspended
from tests.stores import TestStore

NOBODY = "01890000-0000-7000-8000-000000000001"
# Changes that violate an invariant. The constraints of the tables already refuse a contradictory lease.
DAMAGE = {
    "check_versions": "UPDATE ff.execution SET version = version + 1 WHERE state = 'completed'",
    "check_events": f"UPDATE ff.event SET execution_id = '{NOBODY}' WHERE name = 'acquired' AND lane = 'apart'",
    "check_routes": "UPDATE ff.execution SET lane = 'elsewhere' WHERE state = 'waiting'",
    "check_results": "DELETE FROM ff.attempt",
    "check_attempts": f"UPDATE ff.attempt SET execution_id = '{NOBODY}'",
    "check_steps": f"UPDATE ff.step SET execution_id = '{NOBODY}'",
    "check_suspensions": "UPDATE ff.suspension SET closed_at = opened_at, closed_by = 'ended'",
    "check_waitpoints": f"UPDATE ff.waitpoint SET execution_id = '{NOBODY}'",
    "check_signals": "UPDATE ff.execution SET signal_seq = 7 WHERE state = 'waiting'",
    "check_edges": "DELETE FROM ff.edge_group",
    "check_members": "DELETE FROM ff.flow",
}


@pytest.mark.parametrize("situation", SITUATIONS)
async def test_sound_store_has_no_damage(engine: Engine, clock: VirtualClock, situation: str) -> None:
    await SITUATIONS[situation](engine, clock)
    assert await engine.find_damage() == []


async def test_sound_flow_has_no_damage(engine: Engine, clock: VirtualClock) -> None:
    flow = await built(engine, {"a": [], "b": ["a"], "c": ["a", "b"]})
    for name in ("a", "b", "c"):
        assert await engine.find_damage() == []
        await flow.complete(name)
    assert await engine.find_damage() == []


def test_every_invariant_has_a_test() -> None:
    assert set(DAMAGE) | {"check_leases"} == set(INVARIANTS)


@pytest.mark.parametrize("invariant", DAMAGE)
async def test_violated_invariant_is_reported(store: TestStore, engine: Engine, invariant: str) -> None:
    await built(engine, {"a": [], "b": ["a"]})
    lease = await leased(engine)
    await engine.leases.checkpoint(lease.fence, [Step("one", b"1")])
    await engine.leases.complete(lease.fence, b"done")
    await leased(engine, lane="apart")
    await suspended(engine)
    assert await engine.find_damage() == []
    await store.query(DAMAGE[invariant])
    assert any(problem.startswith(INVARIANTS[invariant]) for problem in await engine.find_damage())


async def test_backup_on_postgres_names_its_tool(store: TestStore, engine: Engine, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    if store.name == "sqlite":
        await engine.backup(str(backup))
        assert await restore_backup(str(tmp_path / "restored.db"), str(backup)) is None
        return
    for call in (engine.backup(str(backup)), restore_backup(store.url, str(backup))):
        with pytest.raises(InvalidRequest, match="pg_dump") as refused:
            await call
        assert refused.value.code == "backup_unsupported"
