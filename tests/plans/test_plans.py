"""Tests that the plans of PostgreSQL use indexes, with and without statistics about the tables."""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import asyncpg
import pytest

from flowfabric.engine import Engine, Submission
from flowfabric.store.checks import INVARIANTS
from flowfabric.store.statements import Dialect, Statement, load_statements
from tests.stores import PostgresTestStore

# Statements that are only a part of another statement have no separate plan.
UNPLANNED = {
    "held_as_seen": "a part of the optimistic write",
    "minting": "a part of other statements that locks the key for minting a token",
}
# `doctor --deep` reads everything, so these statements scan whole tables.
UNPLANNED |= dict.fromkeys(INVARIANTS, "an invariant of the whole store")
BY_ID = {
    "renew_if_owned", "renew_noted_if_owned", "progress_if_owned", "complete_if_owned", "record_steps_if_owned",
    "save_execution", "complete_linked_if_owned", "complete_single_if_owned", "release_members", "end_members",
}  # fmt: skip
# The index that a statement uses, and the columns of its index condition.
INDEX_CONDITIONS = {
    "claim_waiting": ("execution_queue", "route_id"),
    "claim_unlocked": ("execution_queue", "route_id"),
    "claim_across": ("execution_queue", "route_id"),
    "list_executions": ("execution_by_state", "namespace state id"),
    "count_in_state": ("execution_by_state", "namespace state"),
    "expired_leases": ("execution_lease_check", "lease_check_at"),
    "next_held_kind": ("execution_held", "namespace kind"),
    "held_of_kind": ("execution_held", "namespace kind"),
    "list_flows": ("flow_by_namespace", "namespace id"),
    "list_live_flows": ("flow_live", "namespace id"),
    "history_of": ("event_version", "execution_id version"),
    "steps_of": ("step_pkey", "execution_id seq"),
    "due_for_lease_expiry": ("execution_lease_check", "lease_check_at"),
    "due_for_delayed_work": ("execution_ready", "ready_at"),
    "due_for_attempt_timeout": ("execution_attempt_timeout", "attempt_timeout_at"),
    "due_for_deadline": ("execution_deadline", "deadline_at"),
    "due_for_retention": ("execution_purge", "purge_at"),
    "due_for_cancel_grace": ("execution_cancel_due", "cancel_due_at"),
    "due_for_event_trimming": ("purged_trim", "trim_at"),
    "lock_free_buried": ("event_version", "execution_id"),
    "delete_events_of": ("event_version", "execution_id version"),
    "delete_all_events_of": ("event_version", "execution_id"),
    "events_apart": ("event_apart", "at"),
    "delete_event": ("event_pkey", "transaction_id id"),
}
EXECUTION_COPIES = 100_000
Plan = dict[str, Any]
Plans = dict[str, Plan]
SETTINGS = ("plan_cache_mode = force_generic_plan", "enable_seqscan = off")
SMALL = {"lane", "route", "signing_key", "subscriber", "worker", "store"}
# This index contains only live leases, so the statement may scan all of it for the leases of a worker.
# `test_mark` reads one row of each index, to see whether the store was used.
FULL_INDEX_SCANS = {
    "held_executions": {"execution_lease_check"},
    "test_mark": {"execution_pkey", "signing_key_pkey"},
}


@pytest.fixture(scope="module", params=["empty", "without statistics", "analysed"])
def plans(request: pytest.FixtureRequest, postgres: Any) -> Plans:
    """Return the plan of every statement: for empty tables, for tables without statistics, and for analysed tables."""
    return asyncio.run(make_plans(PostgresTestStore(postgres.dsn), request.param))


async def make_plans(store: PostgresTestStore, condition: str) -> Plans:
    try:
        await prepare_store(store, condition)
        return await make_generic_plans(store)
    finally:
        await store.drop()


async def prepare_store(store: PostgresTestStore, condition: str) -> None:
    async with store.connecting() as engine:
        if condition != "empty":
            await add_executions(engine)
        if condition == "analysed":
            await copy_executions(store, EXECUTION_COPIES)
            await store.query("ANALYZE ff.execution")


async def add_executions(engine: Engine) -> None:
    for _ in range(3):
        await engine.executions.submit_many([Submission(kind="job", payload=b"x" * 200) for _ in range(1000)])
    leases = await engine.leases.claim(["default"], "w", limit=1000)
    await engine.leases.complete_many([(lease.fence, b"x") for lease in leases[:500]])


async def copy_executions(store: PostgresTestStore, number: int) -> None:
    """Copy an execution `number` times, so that a full scan is never cheap."""
    rows = await store.query(
        "SELECT attname FROM pg_attribute WHERE attrelid = 'ff.execution'::REGCLASS AND attnum > 0 AND NOT attisdropped"
    )
    columns = [row["attname"] for row in rows]
    # Ids are in order of time like those of the engine, which makes a scan of their index look cheap.
    id_ = "(lpad(to_hex(number), 12, '0') || substr(md5(number::TEXT), 1, 20))::UUID"
    values = [id_ if name == "id" else f"one.{name}" for name in columns]
    await store.query(
        f"INSERT INTO ff.execution ({', '.join(columns)}) SELECT {', '.join(values)}"
        " FROM (SELECT * FROM ff.execution WHERE state = 'waiting' LIMIT 1) AS one,"
        f" generate_series(1, {number}) AS number"
    )


def test_no_statement_scans_a_whole_table(plans: Plans) -> None:
    for name, plan in plans.items():
        full_scans = [node["Relation Name"] for node in iterate_nodes(plan) if node["Node Type"] == "Seq Scan"]
        assert set(full_scans) <= SMALL, f"{name} reads {full_scans}"


def test_no_statement_scans_a_whole_index(plans: Plans) -> None:
    for name, plan in plans.items():
        full_scans = {
            node["Index Name"] for node in iterate_nodes(plan) if "Index Name" in node and "Index Cond" not in node
        }
        assert {index for index in full_scans if index.split("_")[0] not in SMALL} <= FULL_INDEX_SCANS.get(
            name, set()
        ), name


def test_guarded_writes_find_their_rows_by_id_only(plans: Plans) -> None:
    for name in BY_ID:
        used = find_index_conditions(plans[name], "execution")
        assert set(used) == {"execution_pkey"}, f"{name} uses {set(used)}"
        assert all(re.fullmatch(r"\(id = [^()]+\)", condition) for condition in used["execution_pkey"]), used


def test_guarded_writes_have_no_join_filter(plans: Plans) -> None:
    for name in BY_ID:
        compared = [node["Join Filter"] for node in iterate_nodes(plans[name]) if "Join Filter" in node]
        assert not compared, f"{name} compares {compared}"


@pytest.mark.parametrize("name", INDEX_CONDITIONS)
def test_index_condition_has_the_expected_columns(plans: Plans, name: str) -> None:
    index, columns = INDEX_CONDITIONS[name]
    used = find_index_conditions(plans[name], index.split("_")[0])
    assert index in used
    for condition in used[index]:
        assert set(re.findall(r"\b([a-z_]+) [<>=]", condition)) == set(columns.split()), condition


@pytest.mark.parametrize("name", ["claim_waiting", "claim_unlocked"])
def test_claim_reads_the_queue_in_order_and_sorts_only_the_heads(plans: Plans, name: str) -> None:
    plan = plans[name]
    queue_scans = [node for node in iterate_nodes(plan) if node.get("Index Name") == "execution_queue"]
    assert queue_scans
    assert all(node["Node Type"] in ("Index Scan", "Index Only Scan") for node in queue_scans)
    assert not reads_without_limit(plan)


def reads_without_limit(node: Plan) -> bool:
    """Return True if the node reads the queue without a limit."""
    if node["Node Type"] == "Limit":
        return False
    return node.get("Index Name") == "execution_queue" or any(map(reads_without_limit, node.get("Plans", ())))


@pytest.mark.parametrize("noted", [False, True])
async def test_renewals_are_heap_only_updates(postgres: Any, noted: bool) -> None:
    store = PostgresTestStore(postgres.dsn)
    async with store.connecting() as engine:
        await engine.executions.submit_many([Submission(kind="job", payload=b"x" * 100) for _ in range(200)])
        leases = await engine.leases.claim(["default"], "w", limit=200)
    claimed = await wait_for_updates(store, at_least=200)
    async with store.connecting(renewal_events=noted) as engine:
        for _ in range(10):
            await engine.leases.renew_many([lease.fence for lease in leases])
    renewed = await wait_for_updates(store, at_least=2200)
    await store.drop()
    assert (renewed["n_tup_hot_upd"] - claimed["n_tup_hot_upd"]) / 2000 >= 0.9


async def wait_for_updates(store: PostgresTestStore, at_least: int) -> dict[str, Any]:
    """Wait until the statistics show at least this many row updates, and return the counts."""
    query = f"""SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
        WHERE relname = 'execution' AND schemaname = '{store.schema}'"""
    async with asyncio.timeout(20):
        while True:
            [row] = await store.query(query)
            if row["n_tup_upd"] >= at_least:
                return row


def find_index_conditions(plan: Plan, table: str) -> dict[str, list[str]]:
    """Return the conditions with which a plan searches the indexes of a table, by index name."""
    conditions_by_index: dict[str, list[str]] = defaultdict(list)
    for node in iterate_nodes(plan):
        if node.get("Index Name", "").startswith(f"{table}_"):
            conditions_by_index[node["Index Name"]].append(node.get("Index Cond", ""))
    return conditions_by_index


async def make_generic_plans(store: PostgresTestStore) -> Plans:
    """Return the generic plan of each statement, prepared with the settings of the engine's connections."""
    by_name = load_postgres_statements(store)
    connection = await asyncpg.connect(store.url)
    try:
        for setting in SETTINGS:
            await connection.execute(f"SET {setting}")
        return {name: await make_generic_plan(connection, by_name[name]) for name in by_name if name not in UNPLANNED}
    finally:
        await connection.close()


async def make_generic_plan(connection: asyncpg.Connection[Any], statement: Statement) -> Plan:
    [part] = statement.parts
    await connection.execute(f"PREPARE probe AS {part.text}")
    nulls = ", ".join("NULL" for _ in (part.parameters[:1] if part.rows else part.parameters))
    [row] = await connection.fetch(f"EXPLAIN (FORMAT JSON) EXECUTE probe{f'({nulls})' if nulls else ''}")
    await connection.execute("DEALLOCATE probe")
    plan: Plan = json.loads(row[0])[0]["Plan"]
    return plan


def load_postgres_statements(store: PostgresTestStore) -> Mapping[str, Statement]:
    return load_statements(Dialect(f'"{store.schema}".', numbered=True), "flowfabric.backends.postgres")


def iterate_nodes(plan: Plan) -> Iterator[Plan]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from iterate_nodes(child)
