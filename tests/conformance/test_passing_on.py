"""What follows from a completed member by one statement, where a store has one, is what would have been worked out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric.backends.postgres.hot import PostgresHotStatements
from flowfabric.engine import Edge, EdgeKind, Engine, any_of, quorum
from flowfabric.ops import complete
from flowfabric.ops.resolving import resolve
from flowfabric.sqlstore.hot import SqlHotStatements
from tests.flows import Flow, Shape, built
from tests.flows import child as child_of
from tests.stores import TestStore

Story = Callable[[Engine], Awaitable[Flow]]
CHAIN: Shape = {"a": [], "b": ["a"], "c": ["b"]}
# The rows of one flow; what is drawn anew for each flow is left out.
ROWS = {
    "flow": "SELECT * FROM ff.flow WHERE id = ?",
    "edge": "SELECT * FROM ff.edge WHERE flow_id = ?",
    "edge_group": "SELECT * FROM ff.edge_group WHERE flow_id = ?",
    "execution": "SELECT * FROM ff.execution WHERE flow_id = ?",
    "event": "SELECT * FROM ff.event WHERE flow_id = ?",
}
DRAWN = {"transaction_id", "event_xid", "lease_id", "former_lease_id", "digest", "former_digest", "fingerprint"}


async def a_chain(engine: Engine) -> Flow:
    flow = await built(
        engine, CHAIN, tags={"team.name": "data"}, options={"b": {"lane": "gpu", "tags": {"job.size": "l"}}}
    )
    await flow.complete("a", "b", "c")
    return flow


async def many_after_one(engine: Engine) -> Flow:
    flow = await built(engine, {"a": [], "b": ["a"], "c": [Edge("a", EdgeKind.ON_COMPLETION)], "d": ["b", "c"]})
    await flow.complete("a", "c", "b", "d")
    return flow


async def joins_of_one(engine: Engine) -> Flow:
    flow = await built(engine, CHAIN, joins={"b": any_of(), "c": quorum(1)})
    await flow.complete("a", "b")
    return flow


async def one_that_must_not_fail_beside(engine: Engine) -> Flow:
    flow = await built(engine, {"a": [], "b": ["a"], "c": [Edge("a", EdgeKind.ON_FAILURE)], "d": ["c"]})
    await flow.complete("a", "b")
    return flow


async def a_bad_end_before(engine: Engine) -> Flow:
    flow = await built(engine, {**CHAIN, "x": [], "y": [Edge("x", EdgeKind.ON_FAILURE)]})
    await flow.fail("x")
    await flow.complete("a", "b", "c", "y")
    return flow


async def a_bad_end_that_nobody_takes_up(engine: Engine) -> Flow:
    flow = await built(engine, {**CHAIN, "x": []})
    await flow.fail("x")
    await flow.complete("a", "b", "c")
    return flow


async def one_that_is_early(engine: Engine) -> Flow:
    flow = await built(engine, CHAIN, options={"b": {"delay": "1m"}})
    await flow.complete("a")
    return flow


async def a_graph_that_grows(engine: Engine) -> Flow:
    flow = await built(engine, CHAIN, seal=False)
    await flow.complete("a", "b", "c")
    await flow.add("d", "c")
    await flow.complete("d")
    await engine.flows.seal(flow.id)
    return flow


async def a_cancelled_flow(engine: Engine) -> Flow:
    flow = await built(engine, CHAIN)
    lease = await flow.claim("a")
    await engine.flows.cancel(flow.id, "enough", policy="cancel_pending")
    await engine.leases.complete(lease.fence, b"")
    return flow


async def a_flow_that_is_only_called_cancelled(engine: Engine) -> Flow:
    flow = await built(engine, CHAIN)
    await engine.flows.cancel(flow.id, "enough", policy="flow_only")
    await flow.complete("a", "b", "c")
    return flow


async def two_at_once(engine: Engine) -> Flow:
    flow = await built(engine, {"a": [], "b": [], "c": ["a"], "d": ["b"], "e": ["c", "d"]})
    for pair in (("a", "b"), ("c", "d")):
        leases = [await flow.claim(name) for name in pair]
        await engine.leases.complete_many([(lease.fence, b"") for lease in leases])
    return flow


async def a_child_beside_a_member(engine: Engine) -> Flow:
    flow = await built(engine, {"a": [], "p": [], "b": ["a"]})
    parent = await flow.claim("p")
    [child] = await engine.leases.submit_children(parent.fence, [child_of("k")])
    flow.members["c"] = child.id
    await engine.leases.complete(parent.fence, b"")
    leases = [await flow.claim(name) for name in ("a", "c")]
    await engine.leases.complete_many([(lease.fence, b"") for lease in leases])
    await flow.complete("b")
    assert await flow.state() == "completed"
    return flow


async def a_member_that_runs_again(engine: Engine) -> Flow:
    flow = await built(engine, CHAIN)
    await flow.complete("a", "b")
    await engine.operator.replay(flow["a"])
    await flow.complete("a", "c")
    return flow


STORIES: list[Story] = [
    a_chain, many_after_one, joins_of_one, one_that_must_not_fail_beside, a_bad_end_before,
    a_bad_end_that_nobody_takes_up, one_that_is_early, a_graph_that_grows, a_cancelled_flow,
    a_flow_that_is_only_called_cancelled, two_at_once, a_child_beside_a_member, a_member_that_runs_again,
]  # fmt: skip


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
async def test_what_is_passed_on_is_what_would_have_been_worked_out(
    engine: Engine, store: TestStore, monkeypatch: pytest.MonkeyPatch, story: Story
) -> None:
    passed_on = await _rows(store, await story(engine))
    monkeypatch.setattr(PostgresHotStatements, "pass_on", SqlHotStatements.pass_on)
    worked_out = await _rows(store, await story(engine))
    assert passed_on == worked_out


async def test_only_what_needs_it_is_worked_out(
    engine: Engine, store: TestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    worked_out = []

    async def noted(tx: Any, flows: Any, ends: Any, now: Any, **options: Any) -> None:
        worked_out.extend(ends)
        await resolve(tx, flows, ends, now, **options)

    monkeypatch.setattr(complete, "resolve", noted)
    flow = await built(engine, {**CHAIN, "x": [], "y": ["c", "x"]})
    await flow.complete("a", "b", "c", "x", "y")
    names = {flow[name]: name for name in flow.members}
    has_the_statement = store.name == "postgres"
    assert [names[end.id] for end in worked_out] == (["c", "x"] if has_the_statement else ["a", "b", "c", "x", "y"])


async def _rows(store: TestStore, flow: Flow) -> dict[str, list[str]]:
    named = {str(id_): name for name, id_ in flow.members.items()} | {str(flow.id): "flow"}
    found = {table: await store.query(sql, flow.id) for table, sql in ROWS.items()}
    return {table: sorted(_shown(row, named, table) for row in rows) for table, rows in found.items()}


def _shown(row: dict[str, Any], named: dict[str, str], table: str) -> str:
    left_out = DRAWN | ({"id"} if table == "event" else set())
    shown = str({name: str(value) for name, value in row.items() if name not in left_out})
    for id_, name in named.items():
        shown = shown.replace(id_, name)
    return shown
