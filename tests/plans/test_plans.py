"""The plans of the hot statements on PostgreSQL: by index, whatever the planner knows about the tables."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest

from flowfabric import Engine, Submission
from flowfabric.sqlstore.statements import Dialect, Statement, load
from tests.stores import PostgresTestStore

HOT = (
    "insert_executions",
    "claim_waiting",
    "renew_if_owned",
    "progress_if_owned",
    "complete_if_owned",
    "record_steps_if_owned",
)
COLD = (
    "get_executions", "lock_executions", "lock_free_executions", "save_execution", "held_executions", "count_in_state",
    "list_executions", "held_for_operator", "history_of", "attempts_of", "attempt_at", "steps_of", "step_named",
    "record_step", "strike_steps", "take_key", "key_holder", "open_grants", "next_due", "due_for_lease_expiry",
    "due_for_delayed_work", "due_for_attempt_timeout", "due_for_deadline", "due_for_retention", "delete_executions",
    "delete_attempts", "delete_steps", "delete_grants", "delete_keys",
)  # fmt: skip
BY_ID = {"renew_if_owned", "progress_if_owned", "complete_if_owned", "record_steps_if_owned", "save_execution"}
SETTINGS = ("plan_cache_mode = force_generic_plan", "enable_seqscan = off")
SMALL = {"lane", "route"}


@pytest.fixture(params=["empty", "unknown to the planner", "analysed"])
async def tables(request: pytest.FixtureRequest, postgres: Any) -> AsyncIterator[PostgresTestStore]:
    """A schema in each condition that the planner may find it in when it makes a plan for good."""
    store = PostgresTestStore(postgres.dsn)
    async with store.connecting() as engine:
        if request.param != "empty":
            await fill(engine)
        if request.param == "analysed":
            await store.query("ANALYZE ff.execution")
    yield store
    await store.drop()


async def fill(engine: Engine) -> None:
    for _ in range(3):
        await engine.executions.submit_many([Submission(kind="job", payload=b"x" * 200) for _ in range(1000)])
    leases = await engine.leases.claim(["default"], "w", limit=1000)
    await engine.leases.complete_many([(lease.fence, b"x") for lease in leases[:500]])


async def test_no_statement_reads_a_table_whole(tables: PostgresTestStore) -> None:
    for name in (*HOT, *COLD):
        plan = await generic_plan(tables, name)
        whole = [node["Relation Name"] for node in nodes(plan) if node["Node Type"] == "Seq Scan"]
        assert set(whole) <= SMALL, f"{name} reads {whole}"


async def test_guarded_writes_find_their_rows_by_id_alone(tables: PostgresTestStore) -> None:
    for name in BY_ID:
        plan = await generic_plan(tables, name)
        used = {node["Index Name"] for node in nodes(plan) if node.get("Index Name", "").startswith("execution_")}
        assert used == {"execution_pkey"}, f"{name} uses {used}"


async def test_a_claim_walks_the_queue_in_its_order_and_sorts_only_the_heads(tables: PostgresTestStore) -> None:
    plan = await generic_plan(tables, "claim_waiting")
    walks = [node for node in nodes(plan) if node.get("Index Name") == "execution_queue"]
    assert walks
    assert all(node["Node Type"] in ("Index Scan", "Index Only Scan") for node in walks)
    sorts = [node for node in nodes(plan) if node["Node Type"].endswith("Sort")]
    assert all(
        "found.priority" in json.dumps(node["Sort Key"]) or "place" in json.dumps(node["Sort Key"]) for node in sorts
    )


async def test_renewals_stay_inside_their_page(postgres: Any) -> None:
    store = PostgresTestStore(postgres.dsn)
    async with store.connecting() as engine:
        await engine.executions.submit_many([Submission(kind="job", payload=b"x" * 100) for _ in range(200)])
        leases = await engine.leases.claim(["default"], "w", limit=200)
    claimed = await updates(store, at_least=200)
    async with store.connecting() as engine:
        for _ in range(10):
            await engine.leases.renew_many([lease.fence for lease in leases])
    renewed = await updates(store, at_least=2200)
    await store.drop()
    assert (renewed["n_tup_hot_upd"] - claimed["n_tup_hot_upd"]) / 2000 >= 0.9


async def updates(store: PostgresTestStore, at_least: int) -> dict[str, Any]:
    """The counts of row updates, once the server has taken in what the closed connections did."""
    query = f"""SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
        WHERE relname = 'execution' AND schemaname = '{store.schema}'"""
    async with asyncio.timeout(20):
        while True:
            [row] = await store.query(query)
            if row["n_tup_upd"] >= at_least:
                return row


async def generic_plan(store: PostgresTestStore, name: str) -> dict[str, Any]:
    """The plan that a connection of the engine makes once and keeps."""
    statement = statements(store)[name]
    [part] = statement.parts
    connection = await asyncpg.connect(store.url)
    try:
        for setting in SETTINGS:
            await connection.execute(f"SET {setting}")
        await connection.execute(f"PREPARE probe AS {part.text}")
        nulls = ", ".join("NULL" for _ in part.parameters)
        [row] = await connection.fetch(f"EXPLAIN (FORMAT JSON) EXECUTE probe{f'({nulls})' if nulls else ''}")
    finally:
        await connection.close()
    plan: dict[str, Any] = json.loads(row[0])[0]["Plan"]
    return plan


def statements(store: PostgresTestStore) -> dict[str, Statement]:
    return load(Dialect(f'"{store.schema}".', numbered=True), "flowfabric.backends.postgres")


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)
