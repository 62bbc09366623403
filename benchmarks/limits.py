"""Run our statements without our engine: with pgbench, which is written in C, and in a bare sqlite3 loop."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import sqlite3
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from flowfabric.core.ids import IdMinter
from flowfabric.store.statements import Dialect, Statement, load_statements
from tests.postgres_server import find_binaries

# Ids are ordered by time, like the engine's ids. Random ids would be spread over the whole index, which would slow
# these statements.
_TIMELY_ID = (
    "overlay(replace(gen_random_uuid()::TEXT, '-', '')"
    " PLACING lpad(to_hex((EXTRACT(EPOCH FROM clock_timestamp()) * 1000)::BIGINT), 12, '0') FROM 1 FOR 12)::UUID"
)
_ARRAYS = {
    "id": f"(SELECT array_agg({_TIMELY_ID}) FROM generate_series(1, {{size}}))",
    "lane": "array_fill('default'::TEXT, ARRAY[{size}])",
    "kind": "array_fill('noop'::TEXT, ARRAY[{size}])",
    "route": "array_fill('{route}'::TEXT, ARRAY[{size}])",
    "priority": "array_fill(0, ARRAY[{size}])",
    "payload": "array_fill('1'::BYTEA, ARRAY[{size}])",
    "encoding": "array_fill('json'::TEXT, ARRAY[{size}])",
    "tags": "array_fill('{{}}'::JSONB, ARRAY[{size}])",
    "policy": "array_fill('{{}}'::JSONB, ARRAY[{size}])",
    "idempotency_key": "array_fill(NULL::TEXT, ARRAY[{size}])",
    "fingerprint": "array_fill('\\x00'::BYTEA, ARRAY[{size}])",
    "lease_ttl_policy_us": "array_fill(30000000::BIGINT, ARRAY[{size}])",
    "attempt_timeout_policy_us": "array_fill(NULL::BIGINT, ARRAY[{size}])",
    "retention_policy_us": "array_fill(86400000000::BIGINT, ARRAY[{size}])",
    "state": "array_fill('waiting'::TEXT, ARRAY[{size}])",
    "blocking_reason": "array_fill('waiting_for_worker'::TEXT, ARRAY[{size}])",
    "plain": "array_fill(TRUE, ARRAY[{size}])",
    "flow_id": "array_fill(NULL::UUID, ARRAY[{size}])",
    "member_name": "array_fill(NULL::TEXT, ARRAY[{size}])",
    "parent_id": "array_fill(NULL::UUID, ARRAY[{size}])",
    "creator": "array_fill(NULL::TEXT, ARRAY[{size}])",
    "ready_at": "array_fill(NULL::TIMESTAMPTZ, ARRAY[{size}])",
    "deadline_at": "array_fill(NULL::TIMESTAMPTZ, ARRAY[{size}])",
    "deadline_us": "array_fill(NULL::BIGINT, ARRAY[{size}])",
    "drawn": "(SELECT string_agg(uuid_send(gen_random_uuid()), '') FROM generate_series(1, {size}))",
    "lanes": "ARRAY['default']",
    "capabilities": "ARRAY[]::TEXT[]",
    "kinds": "NULL",
    "limit": "{size}",
    "worker": "'pgbench'",
    "instance": "'pgbench'",
    "ttl_us": "NULL::BIGINT",
    "namespace": "'default'",
    "now": "NULL::TIMESTAMPTZ",
    "result": "array_fill('1'::BYTEA, ARRAY[{size}])",
    "digest": "array_fill('d'::TEXT, ARRAY[{size}])",
}
_CLAIMED = """SELECT
    COALESCE(array_agg(e.id), '{}') AS ids,
    COALESCE(array_agg(e.epoch), '{}') AS epochs,
    COALESCE(array_agg(e.lease_id), '{}') AS leases
FROM taken AS e"""


def pgbench_script(schema: str, route: str, size: int) -> str:
    """Return a pgbench script that submits, claims and completes in batches with our own statements."""
    statements = load_statements(Dialect(f'"{schema}".', numbered=True), "flowfabric.backends.postgres")
    fill = {name: text.format(size=size, route=route) for name, text in _ARRAYS.items()}
    claim = _inline(statements["claim_waiting"], fill)
    head, _, _ = claim.rpartition("SELECT\n    seen.is_incomplete")
    taken = {"execution_id": ":ids", "epoch": ":epochs", "lease_id": ":leases"}
    complete = _inline(statements["complete_single_if_owned"], fill | taken)
    return f"{_inline(statements['insert_single_executions'], fill)};\n{head}{_CLAIMED} \\gset\n{complete};\n"


async def pgbench_rate(dsn: str, script: Path, size: int, clients: int, seconds: float) -> float:
    """Return the executions per second of pgbench with this script."""
    settings = "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c jit=off -c synchronous_commit=on"
    process = await asyncio.create_subprocess_exec(
        str(find_binaries() / "pgbench"),
        "-n",
        "-M",
        "prepared",
        "-c",
        str(clients),
        "-j",
        "1",
        "-T",
        str(max(1, round(seconds))),
        "-f",
        str(script),
        dsn,
        env=os.environ | {"PGOPTIONS": settings},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await process.communicate()
    found = re.search(rb"tps = ([\d.]+)", out)
    if process.returncode or not found:
        raise RuntimeError(f"pgbench: {error.decode()}")
    return float(found[1]) * size


def raw_sqlite_rate(path: str, route: str, size: int, seconds: float) -> float:
    """Return the executions per second of a bare loop over one connection with the same statements."""
    statements = load_statements(Dialect("ff_", numbered=False), "flowfabric.backends.sqlite")
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("PRAGMA synchronous = FULL")
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        _raw_cycle(connection, statements, route, size)
        done += size
    rate = done / (time.perf_counter() - began)
    connection.close()
    return rate


_IDS = IdMinter(lambda: time.time_ns() // 1_000_000, random.Random().getrandbits)


def _raw_cycle(connection: sqlite3.Connection, statements: Mapping[str, Statement], route: str, size: int) -> None:
    now = time.time_ns() // 1000
    shared = {
        "namespace": "default", "lane": "default", "kind": "noop", "route": route, "priority": 0, "payload": b"1",
        "encoding": "json", "tags": "{}", "policy": "{}", "idempotency_key": None, "fingerprint": b"0",
        "lease_ttl_policy_us": 30_000_000, "attempt_timeout_policy_us": None, "retention_policy_us": 86_400_000_000,
        "state": "waiting", "blocking_reason": "waiting_for_worker", "plain": True,
        "flow_id": None, "member_name": None, "parent_id": None, "creator": None, "ready_at": None,
        "deadline_at": None, "deadline_us": None, "now": now,
        "lanes": '["default"]', "capabilities": "[]", "kinds": None, "limit": size,
        "worker": "raw", "instance": "raw", "ttl_us": None, "result": b"1", "digest": "d", "epoch": 1,
    }  # fmt: skip
    connection.execute("BEGIN IMMEDIATE")
    _run(connection, statements["insert_executions"], [shared | {"id": str(_IDS.mint())} for _ in range(size)])
    connection.execute("COMMIT")
    connection.execute("BEGIN IMMEDIATE")
    candidates = connection.execute(statements["claim_candidates"].parts[0].text, shared).fetchall()
    taken = [shared | {"id": row[0], "execution_id": row[0], "lease_id": str(uuid.uuid4())} for row in candidates]
    _run(connection, statements["take_waiting"], taken)
    ids = {"ids": json.dumps([item["id"] for item in taken])}
    connection.execute(statements["get_leases"].parts[0].text, ids).fetchall()
    connection.execute("COMMIT")
    connection.execute("BEGIN IMMEDIATE")
    _run(connection, statements["complete_if_owned"], taken)
    connection.execute("COMMIT")


def _run(connection: sqlite3.Connection, statement: Statement, items: list[dict[str, object]]) -> None:
    for part in statement.parts:
        values = [item[name] for item in items for name in part.parameters]
        connection.execute(part.over(len(items)), values).fetchall()


def _inline(statement: Statement, fill: dict[str, str]) -> str:
    [part] = statement.parts
    return re.sub(r"\$(\d+)", lambda match: fill[part.parameters[int(match[1]) - 1]], part.text)
