"""Tests of replay of flow members, which reopens edges to members that have not started."""

from __future__ import annotations

import pytest

from flowfabric.engine import Engine, FlowFabricError, Refused, Siblings, any_of, quorum
from flowfabric.testing import VirtualClock
from tests.expectations import last_event, nothing_written, refused
from tests.flows import built, ended, flow_events, with_children
from tests.scenarios import leased
from tests.stores import TestStore


async def test_replayed_upstream_blocks_a_member_that_has_not_started(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.complete("a")
    assert await flow.member("b") == "waiting"
    await engine.operator.replay(flow["a"])
    assert await flow.states() == {"a": "waiting", "b": "blocked"}
    await flow.complete("a")
    assert await flow.member("b") == "waiting"
    await flow.complete("b")
    assert await flow.state() == "completed"


async def test_replayed_upstream_does_not_change_a_started_member(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.complete("a")
    lease = await flow.claim("b")
    before = await engine.executions.describe(flow["b"])
    await engine.operator.replay(flow["a"])
    assert await engine.executions.describe(flow["b"]) == before
    await flow.fail("a")
    assert await flow.states() == {"a": "failed", "b": "active"}
    await engine.leases.complete(lease.fence, b"")
    assert await flow.member("b") == "completed"


async def test_released_member_counts_as_started(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.complete("a")
    await engine.leases.release((await flow.claim("b")).fence)
    await engine.operator.replay(flow["a"])
    assert await flow.member("b") == "waiting"


async def test_replay_without_downstream_leaves_skipped_members_skipped_and_the_flow_failed(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.fail("a")
    assert (await engine.operator.replay(flow["a"], downstream=False)).revived == 0
    assert await flow.states() == {"a": "waiting", "b": "skipped"}
    await flow.complete("a")
    assert await flow.member("b") == "skipped"
    assert await flow.state() == "failed"


async def test_replayed_skipped_member_waits_for_its_dependencies(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"], "c": ["b"]})
    await flow.fail("a")
    assert await flow.state() == "failed"
    await engine.operator.replay(flow["a"], downstream=False)
    await engine.operator.replay(flow["b"], downstream=False)
    await engine.operator.replay(flow["c"])
    assert await flow.states() == {"a": "waiting", "b": "blocked", "c": "blocked"}
    await flow.complete("a", "b", "c")
    assert await flow.state() == "completed"


async def test_replayed_skipped_member_with_a_completed_upstream_starts_immediately(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.fail("a")
    await engine.operator.replay(flow["a"], downstream=False)
    await flow.complete("a")
    assert await flow.state() == "failed"
    await engine.operator.replay(flow["b"])
    assert await flow.member("b") == "waiting"
    await flow.complete("b")
    assert await flow.state() == "completed"


async def test_replayed_skipped_member_with_a_failed_upstream_waits_for_its_replay(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.fail("a")
    await engine.operator.replay(flow["b"])
    assert await flow.member("b") == "blocked"
    await engine.operator.replay(flow["a"])
    await flow.complete("a")
    assert await flow.member("b") == "waiting"


async def test_satisfied_edges_of_a_skipped_member_stay_satisfied(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["a", "b"]})
    await flow.complete("a")
    await flow.fail("b")
    await engine.operator.replay(flow["b"], downstream=False)
    await engine.operator.replay(flow["c"])
    await flow.complete("b")
    assert await flow.member("c") == "waiting"


async def test_finished_flow_runs_again_and_writes_another_finished_event(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.complete("a", "b")
    assert await flow_events(store, flow.id) == ["finished"]
    await engine.operator.replay(flow["b"])
    assert await flow.state() in ("running", "open", "blocked")
    assert (await engine.flows.describe(flow.id)).ended_at is None
    await flow.fail("b")
    assert await flow.state() == "failed"
    assert await flow_events(store, flow.id) == ["finished", "finished"]


@pytest.mark.parametrize("policy", ["cancel_all", "flow_only"])
async def test_replay_in_a_cancelled_flow_is_refused(engine: Engine, store: TestStore, policy: str) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.complete("a")
    await engine.flows.cancel(flow.id, "enough", policy=policy)
    names = ["a", "b"] if policy == "cancel_all" else ["a"]
    async with nothing_written(store):
        for name in names:
            await refused(engine.operator.replay(flow[name]), "flow_already_terminal", FlowFabricError)


async def test_flow_with_a_won_race_is_completed_and_its_loser_may_be_replayed(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["a", "b"]}, joins={"c": any_of()})
    await flow.complete("a", "c")
    assert (await flow.state(), await flow.member("b")) == ("completed", "cancelled")
    await engine.operator.replay(flow["b"])
    assert await flow.states() == {"a": "completed", "b": "waiting", "c": "completed"}
    await flow.fail("b")
    assert await flow.state() == "completed"


async def test_replayed_winner_reopens_the_race_while_its_downstream_has_not_started(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["a", "b"]}, joins={"c": any_of(siblings=Siblings.LET_RUN)})
    await flow.complete("a")
    await engine.operator.replay(flow["a"])
    assert await flow.member("c") == "blocked"
    await flow.complete("b")
    assert await flow.member("c") == "waiting"


async def test_replayed_upstream_counts_once_in_a_quorum(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": [], "law": ["a", "b", "c"]}, joins={"law": quorum(2)})
    await flow.complete("a")
    for _ in range(3):
        await engine.operator.replay(flow["a"])
        await flow.complete("a")
    assert await flow.member("law") == "blocked"
    await flow.complete("b")
    assert await flow.member("law") == "waiting"


async def test_replay_keeps_the_history_and_resets_the_counts(engine: Engine, clock: VirtualClock) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.complete("a")
    await engine.leases.fail((await flow.claim("b")).fence, "not yet")
    clock.advance("5m")
    await engine.reconcilers.tick()
    await flow.fail("b")
    before = await engine.executions.describe(flow["b"])
    await engine.operator.replay(flow["b"], "once more", principal="ada")
    execution = await engine.executions.describe(flow["b"])
    assert (execution.generation, execution.replay_count, execution.retry_count) == (before.generation + 1, 1, 0)
    assert execution.attempts == before.attempts
    event = await last_event(engine, flow["b"])
    assert (event.family, event.name, event.principal, event.reason) == ("operator", "replayed", "ada", "once more")


async def test_member_is_limited_to_ten_replays(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    for _ in range(10):
        await flow.complete("a")
        await engine.operator.replay(flow["a"])
    await flow.complete("a")
    await refused(engine.operator.replay(flow["a"]), "max_replays_exhausted", Refused)


async def test_only_an_ended_member_can_be_replayed(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    async with nothing_written(store):
        await refused(engine.operator.replay(flow["b"]), "execution_not_terminal", Refused)


async def test_failed_replay_fails_the_flow_even_if_its_downstream_completed(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.complete("a", "b")
    assert await flow.state() == "completed"
    await engine.operator.replay(flow["a"])
    await flow.fail("a")
    assert await flow.states() == {"a": "failed", "b": "completed"}
    assert await flow.state() == "failed"


@pytest.mark.parametrize("policy", ["cancel_all", "cancel_pending"])
async def test_root_of_a_cancelled_flow_cannot_be_replayed(engine: Engine, store: TestStore, policy: str) -> None:
    lease = await leased(engine)
    await with_children(engine, lease, "a")
    await engine.flows.cancel(lease.execution_id, "enough", policy=policy)
    await engine.leases.complete(lease.fence, b"")
    async with nothing_written(store):
        await refused(engine.operator.replay(lease.execution_id), "flow_already_terminal", Refused)


async def test_root_of_a_flow_cancelled_with_flow_only_can_be_replayed_with_new_children(
    engine: Engine,
) -> None:
    lease = await leased(engine)
    first = await with_children(engine, lease, "a")
    await engine.flows.cancel(lease.execution_id, "enough", policy="flow_only")
    await ended(engine, first["a"])
    await engine.leases.complete(lease.fence, b"")
    await engine.operator.replay(lease.execution_id)
    next_lease = await engine.leases.claim_execution(lease.execution_id, "worker-1")
    second = await with_children(engine, next_lease, "a")
    assert second["a"] != first["a"]
