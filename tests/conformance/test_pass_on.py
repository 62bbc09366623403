"""Tests that the PostgreSQL statement for completed members writes the same rows as the general algorithm."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric.backends.postgres.hot_path import PostgresTransaction
from flowfabric.engine import Edge, EdgeKind, Engine, any_of, quorum
from flowfabric.ops.flows.resolve import resolve
from flowfabric.ops.leases import complete
from flowfabric.store.transaction import Transaction
from tests.flows import Flow, Shape, built
from tests.flows import child as child_of
from tests.stores import TestStore

Scenario = Callable[[Engine], Awaitable[Flow]]
CHAIN: Shape = {"a": [], "b": ["a"], "c": ["b"]}
# Queries for the rows of one flow, by table.
ROWS = {
    "flow": "SELECT * FROM ff.flow WHERE id = ?",
    "edge": "SELECT * FROM ff.edge WHERE flow_id = ?",
    "edge_group": "SELECT * FROM ff.edge_group WHERE flow_id = ?",
    "execution": "SELECT * FROM ff.execution WHERE flow_id = ?",
    "event": "SELECT * FROM ff.event WHERE flow_id = ?",
}
UNIQUE_COLUMNS = {
    "transaction_id",
    "event_xid",
    "lease_id",
    "former_lease_id",
    "digest",
    "former_digest",
    "fingerprint",
}


async def complete_chain(engine: Engine) -> Flow:
    flow = await built(
        engine, CHAIN, tags={"team.name": "data"}, options={"b": {"lane": "gpu", "tags": {"job.size": "l"}}}
    )
    await flow.complete("a", "b", "c")
    return flow


async def complete_fan_out(engine: Engine) -> Flow:
    flow = await built(engine, {"a": [], "b": ["a"], "c": [Edge("a", EdgeKind.ON_COMPLETION)], "d": ["b", "c"]})
    await flow.complete("a", "c", "b", "d")
    return flow


async def complete_joins_of_one_edge(engine: Engine) -> Flow:
    flow = await built(engine, CHAIN, joins={"b": any_of(), "c": quorum(1)})
    await flow.complete("a", "b")
    return flow


async def complete_beside_failure_handler(engine: Engine) -> Flow:
    flow = await built(engine, {"a": [], "b": ["a"], "c": [Edge("a", EdgeKind.ON_FAILURE)], "d": ["c"]})
    await flow.complete("a", "b")
    return flow


async def complete_after_handled_failure(engine: Engine) -> Flow:
    flow = await built(engine, {**CHAIN, "x": [], "y": [Edge("x", EdgeKind.ON_FAILURE)]})
    await flow.fail("x")
    await flow.complete("a", "b", "c", "y")
    return flow


async def complete_after_unhandled_failure(engine: Engine) -> Flow:
    flow = await built(engine, {**CHAIN, "x": []})
    await flow.fail("x")
    await flow.complete("a", "b", "c")
    return flow


async def release_delayed_member(engine: Engine) -> Flow:
    flow = await built(engine, CHAIN, options={"b": {"delay": "1m"}})
    await flow.complete("a")
    return flow


async def complete_growing_flow(engine: Engine) -> Flow:
    flow = await built(engine, CHAIN, seal=False)
    await flow.complete("a", "b", "c")
    await flow.add("d", "c")
    await flow.complete("d")
    await engine.flows.seal(flow.id)
    return flow


async def complete_in_cancelled_flow(engine: Engine) -> Flow:
    flow = await built(engine, CHAIN)
    lease = await flow.claim("a")
    await engine.flows.cancel(flow.id, "enough", policy="cancel_pending")
    await engine.leases.complete(lease.fence, b"")
    return flow


async def complete_in_flow_cancelled_with_flow_only(engine: Engine) -> Flow:
    flow = await built(engine, CHAIN)
    await engine.flows.cancel(flow.id, "enough", policy="flow_only")
    await flow.complete("a", "b", "c")
    return flow


async def complete_two_together(engine: Engine) -> Flow:
    flow = await built(engine, {"a": [], "b": [], "c": ["a"], "d": ["b"], "e": ["c", "d"]})
    for pair in (("a", "b"), ("c", "d")):
        leases = [await flow.claim(name) for name in pair]
        await engine.leases.complete_many([(lease.fence, b"") for lease in leases])
    return flow


async def complete_child_and_member_together(engine: Engine) -> Flow:
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


async def complete_replayed_member(engine: Engine) -> Flow:
    flow = await built(engine, CHAIN)
    await flow.complete("a", "b")
    await engine.operator.replay(flow["a"])
    await flow.complete("a", "c")
    return flow


SCENARIOS: list[Scenario] = [
    complete_chain,
    complete_fan_out,
    complete_joins_of_one_edge,
    complete_beside_failure_handler,
    complete_after_handled_failure,
    complete_after_unhandled_failure,
    release_delayed_member,
    complete_growing_flow,
    complete_in_cancelled_flow,
    complete_in_flow_cancelled_with_flow_only,
    complete_two_together,
    complete_child_and_member_together,
    complete_replayed_member,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_statement_and_algorithm_write_the_same_rows(
    engine: Engine, store: TestStore, monkeypatch: pytest.MonkeyPatch, scenario: Scenario
) -> None:
    by_statement = await _read_rows(store, await scenario(engine))
    monkeypatch.setattr(PostgresTransaction, "pass_on", Transaction.pass_on)
    by_algorithm = await _read_rows(store, await scenario(engine))
    assert by_statement == by_algorithm


async def test_algorithm_runs_only_where_the_statement_does_not_apply(
    engine: Engine, store: TestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved = []

    async def record_resolve(tx: Any, flows: Any, ends: Any, now: Any, **options: Any) -> None:
        resolved.extend(ends)
        await resolve(tx, flows, ends, now, **options)

    monkeypatch.setattr(complete, "resolve", record_resolve)
    flow = await built(engine, {**CHAIN, "x": [], "y": ["c", "x"]})
    await flow.complete("a", "b", "c", "x", "y")
    names = {flow[name]: name for name in flow.members}
    has_statement = store.name == "postgres"
    assert [names[end.id] for end in resolved] == (["c", "x"] if has_statement else ["a", "b", "c", "x", "y"])


async def _read_rows(store: TestStore, flow: Flow) -> dict[str, list[str]]:
    names = {str(id_): name for name, id_ in flow.members.items()} | {str(flow.id): "flow"}
    rows_by_table = {table: await store.query(sql, flow.id) for table, sql in ROWS.items()}
    return {table: sorted(_format_row(row, names, table) for row in rows) for table, rows in rows_by_table.items()}


def _format_row(row: dict[str, Any], names: dict[str, str], table: str) -> str:
    skipped_columns = UNIQUE_COLUMNS | ({"id"} if table == "event" else set())
    text = str({name: str(value) for name, value in row.items() if name not in skipped_columns})
    for id_, name in names.items():
        text = text.replace(id_, name)
    return text


async def test_downstream_member_is_claimable_without_a_duty(engine: Engine) -> None:
    """No duty runs here. Each member is claimable as soon as the complete of its upstream returns."""
    names = [f"m{number}" for number in range(10)]
    flow = await built(
        engine, {name: names[number - 1 : number] if number else [] for number, name in enumerate(names)}
    )
    started = time.monotonic()
    for name in names:
        [lease] = await asyncio.wait_for(engine.leases.claim(["default"], "worker-1"), 5)
        assert lease.execution_id == flow[name]
        await engine.leases.complete(lease.fence, b"")
    assert time.monotonic() - started < 5
