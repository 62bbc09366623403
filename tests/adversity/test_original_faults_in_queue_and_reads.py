"""Faults that another engine was proven to have in its queue and its reads, each as the fact that holds here."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from flowfabric.engine import Created, Duplicate, Ended, Engine, InvalidRequest, Lease, NotFound, Policy, Refused, State
from flowfabric.testing import VirtualClock
from tests.scenarios import KEEPING, SITUATIONS, leased, submitted
from tests.stores import TestStore, opened

SHOWN_AS = {
    "waiting: resumable": "resumable",
    "waiting: resumed": "resumable",
    "blocked: held": "waiting",
}
UNKNOWN = UUID(int=1)

READS_AND_COMMANDS: dict[str, Callable[[Engine], Awaitable[Any]]] = {
    "describe": lambda engine: engine.executions.describe(UNKNOWN),
    "result": lambda engine: engine.executions.result(UNKNOWN),
    "history": lambda engine: engine.executions.history(UNKNOWN),
    "steps": lambda engine: engine.executions.steps(UNKNOWN),
    "set_tags": lambda engine: engine.executions.set_tags(UNKNOWN, {}),
    "claim_execution": lambda engine: engine.leases.claim_execution(UNKNOWN, "w"),
    "cancel": lambda engine: engine.operator.cancel(UNKNOWN),
    "revoke_lease": lambda engine: engine.operator.revoke_lease(UNKNOWN),
    "grant_reclaim": lambda engine: engine.operator.grant_reclaim(UNKNOWN, "w"),
    "change_priority": lambda engine: engine.operator.change_priority(UNKNOWN, 1),
    "hold": lambda engine: engine.operator.hold(UNKNOWN),
    "unhold": lambda engine: engine.operator.unhold(UNKNOWN),
    "replay": lambda engine: engine.operator.replay(UNKNOWN),
}


async def test_every_path_shows_the_public_state_and_outcome_that_it_led_to(
    engine: Engine, clock: VirtualClock
) -> None:
    for situation, reach in SITUATIONS.items():
        found = await engine.executions.describe(await reach(engine, clock))
        state = situation.partition(":")[0]
        assert found.vector.public_state == SHOWN_AS.get(situation, state), situation
        outcome = {"completed": "success"}.get(state, state) if found.state.is_terminal else "none"
        assert found.vector.terminal_outcome == outcome, situation
        assert (found.ended_at is not None) == found.state.is_terminal, situation


async def test_priority_holds_across_all_lanes_and_kinds_of_a_claim(engine: Engine) -> None:
    ids = [await submitted(engine, kind=f"kind-{n % 3}", lane=f"lane-{n % 4}", priority=n) for n in range(12)]
    lanes = [f"lane-{number}" for number in range(4)]
    taken = await engine.leases.claim(lanes, "w", limit=5) + await engine.leases.claim(lanes, "w", limit=20)
    assert [lease.execution_id for lease in taken] == ids[::-1]


async def test_work_that_nobody_here_can_do_hides_nothing_behind_it(engine: Engine) -> None:
    for _ in range(50):
        await submitted(engine, priority=9000, requires=["gpu"])
    plain = await submitted(engine)
    assert [lease.execution_id for lease in await engine.leases.claim(["default"], "w")] == [plain]
    assert await engine.leases.claim(["default"], "w") == []
    assert len(await engine.leases.claim(["default"], "w", capabilities=["gpu", "more"], limit=100)) == 50


async def test_a_claim_tells_resumed_work_from_fresh_and_leaves_a_paused_lane_alone(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.leases.release(lease.fence)
    fresh = await submitted(engine)
    await engine.lanes.pause("default")
    assert await engine.leases.claim(["default"], "w", limit=5) == []
    with pytest.raises(Refused, match="lane_paused"):
        await engine.leases.claim_execution(fresh, "w")
    await engine.lanes.resume("default")
    taken = await engine.leases.claim(["default"], "w", limit=5)
    assert [(item.execution_id, item.origin, item.attempt_index) for item in taken] == [
        (lease.execution_id, "resumed", 0), (fresh, "fresh", 0),
    ]  # fmt: skip


async def test_a_claim_whose_reply_was_lost_strands_nothing(engine: Engine) -> None:
    id_ = await submitted(engine)
    await engine.leases.claim(["default"], "w")
    [held] = await engine.leases.held("w")
    assert held.execution_id == id_
    await engine.leases.release(held.fence)
    assert [lease.attempt_index for lease in await engine.leases.claim(["default"], "other")] == [0]


async def test_a_grant_is_good_for_its_worker_its_time_one_use_and_a_kept_execution_only(
    engine: Engine, clock: VirtualClock
) -> None:
    lease = await leased(engine, policy=KEEPING)
    await engine.operator.revoke_lease(lease.execution_id)
    grant = await engine.operator.grant_reclaim(lease.execution_id, "heir", ttl="10s")
    with pytest.raises(Refused, match="different_worker"):
        await engine.leases.reclaim(grant, "thief")
    with pytest.raises(NotFound, match="grant_not_found"):
        await engine.leases.reclaim(UNKNOWN, "heir")
    clock.advance("10s")
    with pytest.raises(Refused, match="grant_expired"):
        await engine.leases.reclaim(grant, "heir")
    fresh = await engine.operator.grant_reclaim(lease.execution_id, "heir")
    assert isinstance(await engine.leases.reclaim(fresh, "heir"), Lease)
    await engine.operator.cancel(lease.execution_id)
    for call in (engine.operator.grant_reclaim(lease.execution_id, "heir"), engine.leases.reclaim(fresh, "heir")):
        with pytest.raises(Refused, match="execution_not_reclaimable"):
            await call


async def test_a_used_grant_is_not_used_again_after_its_lease_was_lost(engine: Engine) -> None:
    lease = await leased(engine, policy=KEEPING)
    await engine.operator.revoke_lease(lease.execution_id)
    grant = await engine.operator.grant_reclaim(lease.execution_id, "heir")
    await engine.leases.reclaim(grant, "heir")
    await engine.operator.revoke_lease(lease.execution_id)
    with pytest.raises(Refused, match="grant_already_consumed"):
        await engine.leases.reclaim(grant, "heir")


async def test_what_was_submitted_can_be_claimed_at_once(engine: Engine) -> None:
    id_ = await submitted(engine)
    [lease] = await engine.leases.claim(["default"], "w")
    assert lease.execution_id == id_


async def test_a_submit_keeps_its_delay_key_needs_policy_and_limits(engine: Engine, clock: VirtualClock) -> None:
    policy = Policy(max_retries=7, deadline="1h")
    options: dict[str, Any] = {"requires": ["gpu"], "policy": policy, "tags": {"team.owner": "x"}, "key": "k"}
    first = await engine.executions.submit("job", b"in", delay="10s", priority=1_000_000, **options)
    assert isinstance(first, Created)
    assert await engine.executions.submit("job", b"in", **options) == Duplicate(first.id)
    found = await engine.executions.describe(first.id)
    assert (found.state, found.ready_at) == (State.DELAYED, clock.now() + timedelta(seconds=10))
    assert (found.requires, found.policy, found.priority) == (("gpu",), policy, 9000)
    assert found.deadline_at == clock.now() + timedelta(hours=1)
    for bad in ({"tags": {"no dot": "x"}}, {"payload": b"x" * (1024 * 1024 + 1)}, {"priority": "high"}):
        with pytest.raises(InvalidRequest):
            await engine.executions.submit("job", **bad)


async def test_an_execution_can_be_described_from_its_first_to_its_last_moment(engine: Engine) -> None:
    lease = await leased(engine)
    active = await engine.executions.describe(lease.execution_id)
    assert active.lease is not None
    assert (active.lease.worker, active.lease.expires_at) == (lease.worker, lease.expires_at)
    assert active.started_at == lease.acquired_at
    await engine.operator.revoke_lease(lease.execution_id)
    again = await engine.leases.claim_execution(lease.execution_id, "w")
    await engine.leases.complete(again.fence, b"out")
    ended = await engine.executions.describe(lease.execution_id)
    assert (ended.lease, len(ended.attempts), ended.started_at) == (None, 2, active.started_at)


async def test_an_unknown_execution_is_not_found_whatever_is_asked(engine: Engine) -> None:
    for name, call in READS_AND_COMMANDS.items():
        with pytest.raises(NotFound) as unknown:
            await call(engine)
        assert unknown.value.code == "execution_not_found", name


async def test_retention_runs_by_itself_takes_every_ended_execution_and_leaves_the_events(
    store: TestStore, engine: Engine, clock: VirtualClock
) -> None:
    short = Policy(retention="1m")
    cancelled = await submitted(engine, policy=short, key="freed")
    await engine.operator.cancel(cancelled)
    completed = await leased(engine, policy=short)
    await engine.leases.complete(completed.fence, b"out")
    kept = await leased(engine)
    assert await engine.leases.complete(kept.fence, b"out") == Ended(State.COMPLETED)
    clock.advance("1m")
    await engine.reconcilers.tick()
    assert [row["id"] for row in await store.query("SELECT CAST(id AS TEXT) AS id FROM ff.execution")] == [
        str(kept.execution_id)
    ]
    assert len(await store.query("SELECT execution_id FROM ff.attempt")) == 1
    assert len(await engine.executions.history(completed.execution_id)) == 2
    assert isinstance(await engine.executions.submit("job", key="freed", payload=b"other"), Created)


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_leases_and_timers_go_by_the_clock_of_the_database_not_of_the_process(
    store: TestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead_s = 86_400
    real, real_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real() + ahead_s)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + ahead_s * 10**9)
    async with opened(store) as engine:
        before = datetime.now(UTC)
        lease = await leased(engine, lease_ttl="30s")
        await engine.reconcilers.tick()
        found = await engine.executions.describe(lease.execution_id)
    assert found.state == State.ACTIVE
    assert abs((found.created_at - before).total_seconds()) < 60
    assert abs((lease.expires_at - before).total_seconds()) < 90
