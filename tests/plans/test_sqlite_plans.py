"""The plans of all statements on SQLite: by index, the hot ones by the id alone, whatever SQLite knows of the tables.

The engine is led through every operation and read, and its connections write down what they execute; so a statement
is looked at as it runs, however it is put together. What did not run is looked at as it is loaded.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from functools import partial
from typing import Any

import pytest

from flowfabric.backends.sqlite.store import DIALECT
from flowfabric.engine import Conflict, Engine, Graph
from flowfabric.sqlstore.statements import Part, load
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
    "take_waiting", "save_execution", "get_executions", "lock_executions", "lock_free_executions",
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


class Recording(sqlite3.Connection):
    """A connection that remembers the last arguments of each text that it executed."""

    executed: Executed

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        self.executed[sql] = arguments
        return super().execute(sql, *arguments)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> SqliteTestStore:
    """One store for all of these tests, since they only look at it."""
    return SqliteTestStore(tmp_path_factory.mktemp("plans"))


@pytest.fixture(scope="module")
def executed(store: SqliteTestStore) -> Executed:
    """What an engine executes in all its operations, reads and duties."""
    recorded: Executed = {}
    factory = type("RecordingHere", (Recording,), {"executed": recorded})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=factory))
        asyncio.run(do_everything(store))
    return recorded


@pytest.fixture(scope="module", params=["as it is", "analysed"])
def plans(request: pytest.FixtureRequest, store: SqliteTestStore, executed: Executed) -> Plans:
    """The steps of the plan of each named statement."""
    if request.param == "analysed":
        with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
            connection.execute("ANALYZE")
            # The few rows of a test would be cheaper to read whole, and rightly so; it has learnt of many instead.
            connection.execute("UPDATE sqlite_stat1 SET stat = '1000' || stat WHERE tbl NOT IN ('ff_route', 'ff_lane')")
    statements = load(DIALECT, "flowfabric.backends.sqlite")
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        return {
            name: [step for part in statement.parts for step in plan_of(connection, part, executed)]
            for name, statement in statements.items()
        }


async def do_everything(store: SqliteTestStore) -> None:
    clock = VirtualClock()
    async with opened(store, clock) as engine:
        for place, operation in enumerate(EVERY_OPERATION.values()):
            apart = engine.within(f"space-{place}")
            # The key ring is the store's, so of those that seed it all but the first are refused.
            with suppress(Conflict):
                await operation.act(apart, await operation.arrange(apart, clock))
        lease = await scenarios.leased(engine)
        for read in (engine.executions.describe, engine.executions.result, engine.executions.history):
            await read(lease.execution_id)
        await engine.executions.steps(lease.execution_id)
        await engine.executions.list(state="active", lane=scenarios.LANE, kind="job", tags={"a.b": "c"})
        await engine.executions.count()
        await engine.leases.held(scenarios.WORKER)
        await engine.lanes.list()
        await read_flows(engine)
        async with opened(store, clock, renewal_events=True) as noting:
            await noting.leases.renew(lease.fence)
        await engine.reconcilers._round()


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


def plan_of(connection: sqlite3.Connection, part: Part, executed: Executed) -> list[str]:
    """The steps of a plan, with the tables in place of their aliases."""
    text, arguments = as_executed(part, executed)
    tables = {alias or f"ff_{table}": table for table, alias in _NAMED.findall(text)}
    steps = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", *arguments)]
    return [_READ.sub(lambda found: f"{found[1]} {tables.get(found[2], found[2])}", step) for step in steps]


def as_executed(part: Part, executed: Executed) -> tuple[str, Any]:
    """The text and arguments of a statement as it ran; a batch is written out only then."""
    before, items, after = part.text.partition(":items")
    for text, arguments in executed.items():
        if text == part.text or (items and text.startswith(before) and text.endswith(after)):
            return text, arguments
    if items:
        # An update that ran over fewer columns only.
        assert "\nSET\n" in part.text, f"a batch that never ran: {part.text}"
        return part.over(1), ([None] * len(part.parameters),)
    return part.text, (dict.fromkeys(part.parameters),)


def reads(steps: list[str], table: str) -> Iterator[str]:
    """How a plan comes to the rows of a table."""
    return (step for step in steps if (found := _READ.match(step)) and found[2] == table)


def test_no_statement_reads_a_table_whole(plans: Plans) -> None:
    for name, steps in plans.items():
        whole = [step for table in LARGE for step in reads(steps, table) if step.startswith("SCAN")]
        assert whole == [], name


@pytest.mark.parametrize("name", BY_ID)
def test_guarded_writes_find_their_rows_by_id_alone(plans: Plans, name: str) -> None:
    assert {*reads(plans[name], "execution")} == {"SEARCH execution USING INDEX sqlite_autoindex_ff_execution_1 (id=?)"}


@pytest.mark.parametrize("duty", DUE)
def test_a_duty_walks_its_index_up_to_the_present_and_sorts_nothing(plans: Plans, duty: str) -> None:
    [step] = plans[f"due_for_{duty}"]
    assert step.replace("COVERING ", "") == f"SEARCH execution USING INDEX ff_execution_{DUE[duty]}"


def test_the_next_due_times_are_the_heads_of_their_indexes(plans: Plans) -> None:
    tables = ("execution", "submission_key", "flow")
    heads = [step for table in tables for step in reads(plans["next_due"], table)]
    times = [step for step in heads if "ff_execution_queue (route_id=?)" not in step]
    assert (len(heads), len(times)) == (10, 9)  # The other one looks whether work waits.
    assert all(re.search(r"_at>\?\)$", step) for step in times)


def test_a_claim_walks_the_queue_in_its_order_and_sorts_only_the_heads(plans: Plans) -> None:
    steps = plans["claim_candidates"]
    walks = [step for step in reads(steps, "execution") if "ff_execution_queue" in step]
    assert [step.replace("COVERING ", "") for step in walks] == [
        "SEARCH execution USING INDEX ff_execution_queue (route_id=?)"
    ]
    assert sum("TEMP B-TREE" in step for step in steps) == 1


def test_a_page_and_a_history_begin_at_their_cursor(plans: Plans) -> None:
    page = [*reads(plans["list_executions"], "execution")]
    assert any(step.endswith("ff_execution_by_state (namespace=? AND state=? AND id<?)") for step in page)
    [history] = reads(plans["history_of"], "event")
    assert history.endswith("ff_event_version (execution_id=? AND version>?)")
    [live] = reads(plans["list_live_flows"], "flow")
    assert live == "SEARCH flow USING INDEX ff_flow_live (namespace=? AND id<?)"
