"""Tests that the plans of SQLite use indexes, and that hot statements use only the index of the id.

The engine performs every operation and read while its connections record the statements that they execute. So each
statement is explained as it ran. Statements that did not run are explained as they are loaded.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from typing import Any

import pytest

from flowfabric.backends.sqlite.lending import WriterConnection
from flowfabric.backends.sqlite.store import DIALECT
from flowfabric.engine import Conflict, Engine, Graph
from flowfabric.store.statements import Part, load_statements
from flowfabric.testing import VirtualClock
from tests import scenarios
from tests.faults.flow_operations import EVERY_OPERATION
from tests.stores import SqliteTestStore, opened

LARGE = {
    "execution", "attempt", "step", "event", "submission_key", "reclaim_grant", "suspension", "waitpoint", "signal",
    "flow", "edge", "edge_group", "purged",
}  # fmt: skip
BY_ID = (
    "renew_if_owned", "renew_noted_if_owned", "progress_if_owned", "complete_if_owned", "record_steps_if_owned",
    "take_waiting", "save_execution", "get_executions", "lock_executions", "lock_free_executions", "look", "glances",
)  # fmt: skip
DUE = {
    "lease_expiry": "lease_check (lease_check_at<?)",
    "delayed_work": "ready (ready_at<?)",
    "attempt_timeout": "attempt_timeout (attempt_timeout_at<?)",
    "deadline": "deadline (deadline_at<?)",
    "retention": "purge (purge_at<?)",
    "cancel_grace": "cancel_due (cancel_due_at<?)",
}
_NAMED = re.compile(r"\b(?:FROM|JOIN|UPDATE|INTO) ff_(\w+)(?: AS (\w+))?")
_READ = re.compile(r"^(SCAN|SEARCH) (\w+)")

Executed = dict[str, Any]
Plans = Mapping[str, list[str]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> SqliteTestStore:
    """Return one store for all tests of this file. They can share it because they only read it."""
    return SqliteTestStore(tmp_path_factory.mktemp("plans"))


@pytest.fixture(scope="module")
def executed(store: SqliteTestStore) -> Executed:
    """Return the statements that an engine executes in all its operations, reads and duties, with their arguments."""
    recorded: Executed = {}

    def execute(self: sqlite3.Connection, sql: str, *arguments: Any) -> sqlite3.Cursor:
        recorded[sql] = arguments
        return sqlite3.Connection.execute(self, sql, *arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(WriterConnection, "execute", execute)
        asyncio.run(run_all_operations(store))
    return recorded


@pytest.fixture(scope="module", params=["without statistics", "analysed"])
def plans(request: pytest.FixtureRequest, store: SqliteTestStore, executed: Executed) -> Plans:
    """Return the plan steps of each named statement."""
    if request.param == "analysed":
        with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
            connection.execute("ANALYZE")
            # SQLite would rightly scan the few rows of a test, so make it believe that there are many rows.
            connection.execute("UPDATE sqlite_stat1 SET stat = '1000' || stat WHERE tbl NOT IN ('ff_route', 'ff_lane')")
    statements = load_statements(DIALECT, "flowfabric.backends.sqlite")
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        return {
            name: [step for part in statement.parts for step in explain_part(connection, part, executed)]
            for name, statement in statements.items()
        }


async def run_all_operations(store: SqliteTestStore) -> None:
    clock = VirtualClock()
    async with opened(store, clock) as engine:
        for index, operation in enumerate(EVERY_OPERATION.values()):
            isolated = engine.for_namespace(f"space-{index}")
            # All operations share the key ring of the store, so only the first operation that seeds a key succeeds.
            with suppress(Conflict):
                await operation.act(isolated, await operation.arrange(isolated, clock))
        lease = await scenarios.leased(engine)
        for read in (engine.executions.describe, engine.executions.result, engine.executions.history):
            await read(lease.execution_id)
        await engine.executions.steps(lease.execution_id)
        await engine.executions.list(state="active", lane=scenarios.LANE, kind="job", tags={"a.b": "c"})
        await engine.executions.count()
        await engine.leases.held(scenarios.WORKER)
        await engine.held_work()
        await engine.lanes.list()
        await read_flows(engine)
        async with opened(store, clock, renewal_events=True) as with_events:
            await with_events.leases.renew(lease.fence)
        await engine.reconcilers._run_overdue()


async def read_flows(engine: Engine) -> None:
    graph = Graph("small")
    graph.add("a", "job")
    graph.add("b", "job", after=["a"])
    created = await engine.flows.submit(graph)
    await engine.flows.describe(created.flow_id)
    await engine.flows.members(created.flow_id)
    await engine.flows.list()
    await engine.flows.inputs(created.members["b"])
    await engine.operator.explain(created.members["b"])


def explain_part(connection: sqlite3.Connection, part: Part, executed: Executed) -> list[str]:
    """Return the plan steps of a statement, with table names instead of aliases."""
    text, arguments = find_executed(part, executed)
    tables = {alias or f"ff_{table}": table for table, alias in _NAMED.findall(text)}
    steps = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", *arguments)]
    return [_READ.sub(lambda match: f"{match[1]} {tables.get(match[2], match[2])}", step) for step in steps]


def find_executed(part: Part, executed: Executed) -> tuple[str, Any]:
    """Return the text and the arguments with which a statement ran. If it did not run, return its loaded text."""
    before, items, after = part.text.partition(":items")
    for text, arguments in executed.items():
        if text == part.text or (items and text.startswith(before) and text.endswith(after)):
            return text, arguments
    if items:
        # The engine updated only some of the columns of this statement, so no recorded text matches.
        assert "\nSET\n" in part.text, f"this batch never ran: {part.text}"
        return part.over(1), ([None] * len(part.parameters),)
    return part.text, (dict.fromkeys(part.parameters),)


def find_reads(steps: list[str], table: str) -> Iterator[str]:
    """Return the steps of a plan that read a table."""
    return (step for step in steps if (match := _READ.match(step)) and match[2] == table)


def test_no_statement_scans_a_whole_table(plans: Plans) -> None:
    # The checks of `doctor --deep` read everything. `test_mark` reads one row of an index.
    others = {name: steps for name, steps in plans.items() if not name.startswith("check_") and name != "test_mark"}
    for name, steps in others.items():
        full_scans = [step for table in LARGE for step in find_reads(steps, table) if step.startswith("SCAN")]
        assert full_scans == [], name


@pytest.mark.parametrize("name", BY_ID)
def test_guarded_writes_find_their_rows_by_id_only(plans: Plans, name: str) -> None:
    assert {*find_reads(plans[name], "execution")} == {
        "SEARCH execution USING INDEX sqlite_autoindex_ff_execution_1 (id=?)"
    }


@pytest.mark.parametrize("duty", DUE)
def test_duty_reads_its_index_up_to_now_without_a_sort(plans: Plans, duty: str) -> None:
    [step] = plans[f"due_for_{duty}"]
    assert step.replace("COVERING ", "") == f"SEARCH execution USING INDEX ff_execution_{DUE[duty]}"


def test_next_due_times_are_the_heads_of_their_indexes(plans: Plans) -> None:
    tables = ("execution", "submission_key", "flow")
    heads = [step for table in tables for step in find_reads(plans["next_due"], table)]
    times = [step for step in heads if "ff_execution_queue (route_id=?)" not in step]
    assert (len(heads), len(times)) == (10, 9)  # One of the ten reads looks for waiting executions and has no time.
    assert all(re.search(r"_at>\?\)$", step) for step in times)


def test_claim_reads_the_queue_in_order_and_sorts_only_the_heads(plans: Plans) -> None:
    steps = plans["claim_candidates"]
    queue_reads = [step for step in find_reads(steps, "execution") if "ff_execution_queue" in step]
    assert [step.replace("COVERING ", "") for step in queue_reads] == [
        "SEARCH execution USING INDEX ff_execution_queue (route_id=?)"
    ]
    assert sum("TEMP B-TREE" in step for step in steps) == 1


def test_page_and_history_start_at_their_cursor(plans: Plans) -> None:
    page = [*find_reads(plans["list_executions"], "execution")]
    assert any(step.endswith("ff_execution_by_state (namespace=? AND state=? AND id>? AND id<?)") for step in page)
    [history] = find_reads(plans["history_of"], "event")
    assert history.endswith("ff_event_version (execution_id=? AND version>?)")
    for name, bounds in (("next_held_kind", "namespace=? AND kind>?"), ("held_of_kind", "namespace=? AND kind=?")):
        [held] = find_reads(plans[name], "execution")
        assert held.replace("COVERING ", "") == f"SEARCH execution USING INDEX ff_execution_held ({bounds})"
    [live] = find_reads(plans["list_live_flows"], "flow")
    assert live == "SEARCH flow USING INDEX ff_flow_live (namespace=? AND id<?)"
