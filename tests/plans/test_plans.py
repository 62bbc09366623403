"""The plans of the hot statements on PostgreSQL: by index, whatever the planner knows about the tables."""

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
from flowfabric.sqlstore.statements import Dialect, Statement, load
from tests.stores import PostgresTestStore

# What has no plan of its own; every other statement is looked at.
UNPLANNED = {
    "held_as_seen": "a part of the statement that writes what was seen without a lock",
    "minting": "likewise; it locks the key that a token is minted with",
}
BY_ID = {
    "renew_if_owned", "renew_noted_if_owned", "progress_if_owned", "complete_if_owned", "record_steps_if_owned",
    "save_execution", "complete_linked_if_owned", "release_members", "end_members",
}  # fmt: skip
# The index that a statement walks, and the columns by which it finds the place to begin and the one to end.
WHERE = {
    "claim_waiting": ("execution_queue", "route_id"),
    "claim_unlocked": ("execution_queue", "route_id"),
    "list_executions": ("execution_by_state", "namespace state id"),
    "count_in_state": ("execution_by_state", "namespace state"),
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
COPIES = 100_000
Plan = dict[str, Any]
Plans = dict[str, Plan]
SETTINGS = ("plan_cache_mode = force_generic_plan", "enable_seqscan = off")
SMALL = {"lane", "route", "signing_key", "subscriber", "worker", "store"}
# What a worker holds is looked for among the live leases, which are all that this index has.
WALKED = {"held_executions": {"execution_lease_check"}}


@pytest.fixture(scope="module", params=["empty", "unknown to the planner", "analysed"])
def plans(request: pytest.FixtureRequest, postgres: Any) -> Plans:
    """The plan of every statement, in each condition that the planner may find a schema in when it makes one for
    good."""
    return asyncio.run(plans_of(PostgresTestStore(postgres.dsn), request.param))


async def plans_of(store: PostgresTestStore, condition: str) -> Plans:
    try:
        await prepare(store, condition)
        return await generic_plans(store)
    finally:
        await store.drop()


async def prepare(store: PostgresTestStore, condition: str) -> None:
    async with store.connecting() as engine:
        if condition != "empty":
            await fill(engine)
        if condition == "analysed":
            await copy_executions(store, COPIES)
            await store.query("ANALYZE ff.execution")


async def fill(engine: Engine) -> None:
    for _ in range(3):
        await engine.executions.submit_many([Submission(kind="job", payload=b"x" * 200) for _ in range(1000)])
    leases = await engine.leases.claim(["default"], "w", limit=1000)
    await engine.leases.complete_many([(lease.fence, b"x") for lease in leases[:500]])


async def copy_executions(store: PostgresTestStore, number: int) -> None:
    """So many that reading them all is never cheap."""
    found = await store.query(
        "SELECT attname FROM pg_attribute WHERE attrelid = 'ff.execution'::REGCLASS AND attnum > 0 AND NOT attisdropped"
    )
    columns = [row["attname"] for row in found]
    # Ids in order of time, as the engine's own are: walking their index is cheap then, and the more tempting.
    id_ = "(lpad(to_hex(number), 12, '0') || substr(md5(number::TEXT), 1, 20))::UUID"
    values = [id_ if name == "id" else f"one.{name}" for name in columns]
    await store.query(
        f"INSERT INTO ff.execution ({', '.join(columns)}) SELECT {', '.join(values)}"
        " FROM (SELECT * FROM ff.execution WHERE state = 'waiting' LIMIT 1) AS one,"
        f" generate_series(1, {number}) AS number"
    )


def test_no_statement_reads_a_table_whole(plans: Plans) -> None:
    for name, plan in plans.items():
        whole = [node["Relation Name"] for node in nodes(plan) if node["Node Type"] == "Seq Scan"]
        assert set(whole) <= SMALL, f"{name} reads {whole}"


def test_no_statement_walks_an_index_whole(plans: Plans) -> None:
    for name, plan in plans.items():
        whole = {node["Index Name"] for node in nodes(plan) if "Index Name" in node and "Index Cond" not in node}
        assert {index for index in whole if index.split("_")[0] not in SMALL} <= WALKED.get(name, set()), name


def test_guarded_writes_find_their_rows_by_id_alone(plans: Plans) -> None:
    for name in BY_ID:
        used = conditions(plans[name], "execution")
        assert set(used) == {"execution_pkey"}, f"{name} uses {set(used)}"
        assert all(re.fullmatch(r"\(id = [^()]+\)", found) for found in used["execution_pkey"]), used


def test_guarded_writes_never_compare_every_item_of_a_batch_with_every_other(plans: Plans) -> None:
    for name in BY_ID:
        compared = [node["Join Filter"] for node in nodes(plans[name]) if "Join Filter" in node]
        assert not compared, f"{name} compares {compared}"


@pytest.mark.parametrize("name", WHERE)
def test_an_index_is_entered_where_the_statement_says(plans: Plans, name: str) -> None:
    index, columns = WHERE[name]
    used = conditions(plans[name], index.split("_")[0])
    assert index in used
    for condition in used[index]:
        assert set(re.findall(r"\b([a-z_]+) [<>=]", condition)) == set(columns.split()), condition


@pytest.mark.parametrize("name", ["claim_waiting", "claim_unlocked"])
def test_a_claim_walks_the_queue_in_its_order_and_sorts_only_the_heads(plans: Plans, name: str) -> None:
    plan = plans[name]
    walks = [node for node in nodes(plan) if node.get("Index Name") == "execution_queue"]
    assert walks
    assert all(node["Node Type"] in ("Index Scan", "Index Only Scan") for node in walks)
    assert not reads_without_limit(plan)


def reads_without_limit(node: Plan) -> bool:
    """True if the node is fed from the queue by anything but a limited number of heads."""
    if node["Node Type"] == "Limit":
        return False
    return node.get("Index Name") == "execution_queue" or any(map(reads_without_limit, node.get("Plans", ())))


@pytest.mark.parametrize("noted", [False, True])
async def test_renewals_stay_inside_their_page(postgres: Any, noted: bool) -> None:
    store = PostgresTestStore(postgres.dsn)
    async with store.connecting() as engine:
        await engine.executions.submit_many([Submission(kind="job", payload=b"x" * 100) for _ in range(200)])
        leases = await engine.leases.claim(["default"], "w", limit=200)
    claimed = await updates(store, at_least=200)
    async with store.connecting(renewal_events=noted) as engine:
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


def conditions(plan: Plan, table: str) -> dict[str, list[str]]:
    """By which conditions a statement enters the indexes of a table."""
    found: dict[str, list[str]] = defaultdict(list)
    for node in nodes(plan):
        if node.get("Index Name", "").startswith(f"{table}_"):
            found[node["Index Name"]].append(node.get("Index Cond", ""))
    return found


async def generic_plans(store: PostgresTestStore) -> Plans:
    """The plans that a connection of the engine makes once and keeps."""
    known = statements(store)
    connection = await asyncpg.connect(store.url)
    try:
        for setting in SETTINGS:
            await connection.execute(f"SET {setting}")
        return {name: await generic_plan(connection, known[name]) for name in known if name not in UNPLANNED}
    finally:
        await connection.close()


async def generic_plan(connection: asyncpg.Connection[Any], statement: Statement) -> Plan:
    [part] = statement.parts
    await connection.execute(f"PREPARE probe AS {part.text}")
    nulls = ", ".join("NULL" for _ in (part.parameters[:1] if part.rows else part.parameters))
    [row] = await connection.fetch(f"EXPLAIN (FORMAT JSON) EXECUTE probe{f'({nulls})' if nulls else ''}")
    await connection.execute("DEALLOCATE probe")
    plan: Plan = json.loads(row[0])[0]["Plan"]
    return plan


def statements(store: PostgresTestStore) -> Mapping[str, Statement]:
    return load(Dialect(f'"{store.schema}".', numbered=True), "flowfabric.backends.postgres")


def nodes(plan: Plan) -> Iterator[Plan]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)
