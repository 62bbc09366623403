"""Tables that are emptied, or dropped and created again, while an engine is open.

Test suites do this between two tests. An engine must not use ids of rows that no longer exist.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowfabric.engine import Created, Engine, Graph, Refused, State, Step
from tests.expectations import refused
from tests.flows import child
from tests.scenarios import leased, submitted, suspended
from tests.stores import TABLES, TestStore, opened

EMPTIED = [table for table in TABLES if table != "migration"]


async def empty(store: TestStore, *tables: str) -> None:
    """Remove all rows of these tables, and let ids start again."""
    for table in tables or EMPTIED:
        await store.query(f"DELETE FROM ff.{table}")
    if store.name == "sqlite":
        await store.query("DELETE FROM sqlite_sequence")
    else:
        await store.query("ALTER TABLE ff.route ALTER COLUMN id RESTART")


async def claimed(engine: Engine, kind: str, **options: Any) -> list[bytes]:
    leases = await engine.leases.claim(["default"], "worker-1", kinds=[kind], limit=10, **options)
    assert {lease.kind for lease in leases} <= {kind}
    return [lease.payload for lease in leases]


async def test_submit_after_the_tables_were_emptied_is_claimed(engine: Engine, store: TestStore) -> None:
    await submitted(engine, "mail", b"before")
    await empty(store)
    await submitted(engine, "mail", b"after")
    assert await claimed(engine, "mail") == [b"after"]


async def test_payload_never_reaches_a_worker_of_another_kind(engine: Engine, store: TestStore) -> None:
    await submitted(engine, "mail")
    await empty(store)
    async with opened(store) as other:
        # This kind gets the id that the route of the first kind had, if ids are counted.
        await submitted(other, "report", b"for report")
    id_ = await submitted(engine, "mail", b"for mail")
    assert await claimed(engine, "report") == [b"for report"]
    assert (await engine.executions.describe(id_)).kind == "mail"
    assert await claimed(engine, "mail") == [b"for mail"]


@pytest.mark.parametrize("options", [{"key": "k"}, {"signals": ["go"]}, {"requires": ["gpu"]}, {"delay": "0s"}])
async def test_every_way_to_submit_creates_a_missing_route(
    engine: Engine, store: TestStore, options: dict[str, Any]
) -> None:
    await submitted(engine, "mail", **options)
    await empty(store)
    await submitted(engine, "mail", b"after", **options)
    assert await claimed(engine, "mail", capabilities=["gpu"]) == [b"after"]


async def test_many_submissions_create_their_missing_routes(engine: Engine, store: TestStore) -> None:
    await submitted(engine, "mail")
    await empty(store)
    outcomes = await asyncio.gather(*[engine.executions.submit(f"kind-{number % 5}") for number in range(40)])
    assert all(isinstance(outcome, Created) for outcome in outcomes)
    leases = await engine.leases.claim(["default"], "worker-1", limit=50)
    assert sorted(lease.execution_id for lease in leases) == sorted(outcome.id for outcome in outcomes)


def one_member(payload: bytes) -> Graph:
    graph = Graph("letters")
    graph.add("a", "mail", payload)
    return graph


async def test_flow_members_create_missing_routes(engine: Engine, store: TestStore) -> None:
    await engine.flows.submit(one_member(b"before"))
    await empty(store)
    await engine.flows.submit(one_member(b"member"))
    assert await claimed(engine, "mail") == [b"member"]


async def test_children_create_missing_routes(engine: Engine, store: TestStore) -> None:
    parent = await leased(engine, kind="parent")
    await engine.leases.submit_children(parent.fence, [child("first", "mail")])
    await empty(store)
    parent = await leased(engine, kind="parent")
    await engine.leases.submit_children(parent.fence, [child("first", "mail", b"child")])
    assert await claimed(engine, "mail") == [b"child"]


async def test_execution_without_a_route_is_described_and_explained(engine: Engine, store: TestStore) -> None:
    id_ = await submitted(engine, "mail", b"early")
    await empty(store, "route")
    assert (await engine.executions.describe(id_)).kind == "mail"
    explanation = await engine.operator.explain(id_)
    assert explanation.facts["route"] == "missing"
    assert "Submit another execution of this kind" in explanation.sentence
    assert await claimed(engine, "mail") == []
    # The id of a route follows from its content, so another submit makes the first one claimable again.
    await submitted(engine, "mail", b"late")
    assert await claimed(engine, "mail") == [b"early", b"late"]


async def test_execution_with_the_route_of_another_kind_is_not_claimed(engine: Engine, store: TestStore) -> None:
    damaged = await submitted(engine, "mail", b"damaged", priority=5)
    await submitted(engine, "report", b"whole")
    await store.query("UPDATE ff.execution SET route_id = (SELECT id FROM ff.route WHERE kind = 'report')")
    assert await claimed(engine, "report") == [b"whole"]
    assert await claimed(engine, "mail") == []
    assert (await engine.operator.explain(damaged)).facts["route"] == "missing"


async def test_replay_of_an_execution_creates_its_missing_route(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine, kind="mail", payload=b"again")
    await engine.leases.complete(lease.fence)
    await empty(store, "route")
    await engine.operator.replay(lease.execution_id)
    assert await claimed(engine, "mail") == [b"again"]


async def test_draining_lane_still_refuses_a_submit_without_a_route(engine: Engine) -> None:
    await engine.lanes.drain("slow")
    await refused(engine.executions.submit("mail", lane="slow"), "lane_draining", Refused)
    assert await engine.backlog() == []


async def test_routes_from_before_keep_their_ids(engine: Engine, store: TestStore) -> None:
    await submitted(engine, "mail", b"old")
    await store.query("UPDATE ff.execution SET route_id = 7")
    await store.query("UPDATE ff.route SET id = 7")
    async with opened(store) as other:
        await submitted(other, "mail", b"new")
        assert sorted(await claimed(other, "mail")) == [b"new", b"old"]


async def test_ids_of_new_routes_are_far_above_those_of_older_stores(engine: Engine, store: TestStore) -> None:
    await submitted(engine, "mail")
    [row] = await store.query("SELECT id FROM ff.route")
    assert 2**62 <= row["id"] < 2**63


async def recreate(store: TestStore) -> None:
    """Drop all tables, and let another process create them again."""
    if store.name == "postgres":
        await store.query(f'DROP SCHEMA "{store.schema}" CASCADE')  # type: ignore[attr-defined]
    else:
        tables = await store.query(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'ff@_%' ESCAPE '@'"
        )
        for row in tables:
            await store.query(f"DROP TABLE {row['name']}")
    async with opened(store):
        pass


async def test_engine_works_after_the_schema_was_dropped_and_created_again(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine, kind="mail")
    await engine.leases.checkpoint(lease.fence, [Step("one", b"1")])
    await engine.leases.complete(lease.fence)
    await recreate(store)
    for number in range(3):
        await submitted(engine, "mail", str(number).encode())
    for number in range(3):
        [lease] = await engine.leases.claim(["default"], "worker-1", kinds=["mail"])
        assert lease.payload == str(number).encode()
        await engine.leases.checkpoint(lease.fence, [Step("one", b"1")])
        await engine.leases.complete(lease.fence)
        assert (await engine.executions.describe(lease.execution_id)).state is State.COMPLETED


async def test_tokens_work_after_the_schema_was_dropped_and_created_again(engine: Engine, store: TestStore) -> None:
    await suspended(engine)
    await recreate(store)
    wait = await suspended(engine)
    await engine.signals.deliver(wait.token(), "go")
    assert (await engine.executions.describe(wait.id)).state is not State.SUSPENDED
