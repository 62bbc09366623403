"""Tests of submit_in_transaction with every library. The execution exists only if the caller commits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flowfabric.engine import Conflict, Created, Duplicate, Engine, InvalidRequest, NotFound, Refused, State, Submission
from tests.callers import ON_POSTGRES, ON_SQLITE, Caller, make_table, notes, own_namespace, shared_schema
from tests.postgres_server import PostgresServer
from tests.stores import PostgresTestStore, SqliteTestStore, TestStore, opened


@dataclass(frozen=True, slots=True)
class JoinedProgram:
    """An engine and a program with its own connection to the same store."""

    store: TestStore
    engine: Engine
    caller: Caller


@pytest.fixture(scope="module")
def schema(postgres: PostgresServer) -> Iterator[PostgresTestStore]:
    with shared_schema(postgres) as store:
        yield store


def _library_params(libraries: Iterable[str]) -> list[Any]:
    """Return test parameters whose ids contain `postgres`, so that `-k postgres` selects them."""
    return [pytest.param(name, id=f"postgres: {name}" if name in ON_POSTGRES else name) for name in libraries]


LIBRARIES = _library_params([*ON_SQLITE, *ON_POSTGRES])
# SQLAlchemy sends its statements through one of these drivers, so some tests do not run with SQLAlchemy too.
DRIVERS = _library_params(["sqlite3", "asyncpg", "psycopg", "psycopg async"])


@pytest.fixture(params=LIBRARIES)
async def joined(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[JoinedProgram]:
    """Yield one program per library."""
    if request.param in ON_SQLITE:
        files = SqliteTestStore(tmp_path)
        async with opened(files) as engine:
            await make_table(files)
            async with ON_SQLITE[request.param](files, engine) as caller:
                yield JoinedProgram(files, engine, caller)
        return
    schema: PostgresTestStore = request.getfixturevalue("schema")
    async with opened(schema, namespace=own_namespace()) as engine:
        await make_table(schema)
        async with ON_POSTGRES[request.param](schema, engine) as caller:
            yield JoinedProgram(schema, engine, caller)


async def count_rows(joined: JoinedProgram) -> dict[str, int]:
    """Return the number of rows in the tables that a submit writes to."""
    counts = [
        f"(SELECT count(*) FROM ff.{table} WHERE namespace = ?) AS {table}"
        for table in ("execution", "submission_key", "route")
    ]
    [row] = await joined.store.query(f"SELECT {', '.join(counts)}", *[joined.engine.namespace] * 3)
    return row


async def test_execution_commits_with_the_rows_of_the_caller_and_can_be_completed(joined: JoinedProgram) -> None:
    engine, caller = joined.engine, joined.caller
    submission = Submission(
        kind="ship", payload=b"17", encoding="text", requires=["scale"], tags={"shop.order": "17"}, key="order-17"
    )

    await caller.note("order 17")
    result = await caller.submit(submission)
    assert result == Created(result.id, State.WAITING)
    later = await caller.submit(Submission(kind="bill", delay="1h"))
    assert later == Created(later.id, State.DELAYED)
    with pytest.raises(NotFound):
        await engine.executions.describe(result.id)
    await caller.commit()

    assert await notes(joined.store) == ["order 17"]
    assert dict((await engine.executions.describe(result.id)).tags) == {"shop.order": "17"}
    [lease] = await engine.leases.claim(["default"], "packer", capabilities=["scale"])
    assert (lease.execution_id, lease.payload, lease.encoding, lease.is_standalone) == (result.id, b"17", "text", True)
    await engine.leases.complete(lease.fence, b"shipped")
    outcome = await engine.executions.result(result.id)
    assert outcome is not None and outcome.result == b"shipped"


async def test_execution_is_rolled_back_with_the_rows_of_the_caller(joined: JoinedProgram) -> None:
    engine, caller = joined.engine, joined.caller
    submission = Submission(kind="ship", key="order-17")

    await caller.note("order 17")
    rolled_back = await caller.submit(submission)
    await caller.rollback()

    assert await notes(joined.store) == []
    assert await count_rows(joined) == {"execution": 0, "submission_key": 0, "route": 0}
    second = await engine.executions.submit("ship", key="order-17")
    assert second == Created(second.id, State.WAITING) and second.id != rolled_back.id
    assert await caller.submit(submission) == Duplicate(second.id)


@pytest.mark.parametrize("joined", DRIVERS, indirect=True)
async def test_route_of_a_rolled_back_submit_is_not_cached(joined: JoinedProgram) -> None:
    engine, caller = joined.engine, joined.caller
    await caller.submit(Submission(kind="ship"))
    await caller.rollback()

    # A new route may get the number of the route that was rolled back.
    other_id = await engine.executions.submit("bill")
    first = await engine.executions.submit("ship")
    second = await caller.submit(Submission(kind="ship"))
    await caller.commit()

    shipped = await engine.leases.claim(["default"], "packer", kinds=["ship"], limit=3)
    assert [lease.execution_id for lease in shipped] == [first.id, second.id]
    billed = await engine.leases.claim(["default"], "clerk", kinds=["bill"], limit=3)
    assert [lease.execution_id for lease in billed] == [other_id.id]


@pytest.mark.parametrize("joined", DRIVERS, indirect=True)
async def test_repeated_key_or_id_is_a_duplicate_inside_and_outside_of_the_transaction(joined: JoinedProgram) -> None:
    engine, caller = joined.engine, joined.caller
    outside = await engine.executions.submit("ship", b"1", key="order-1")

    assert await caller.submit(Submission(kind="ship", payload=b"1", key="order-1")) == Duplicate(outside.id)
    assert await caller.submit(Submission(kind="ship", payload=b"1", id=outside.id)) == Duplicate(outside.id)
    inside = await caller.submit(Submission(kind="ship", payload=b"2", key="order-2"))
    assert await caller.submit(Submission(kind="ship", payload=b"2", key="order-2")) == Duplicate(inside.id)
    assert await caller.submit(Submission(kind="ship", payload=b"2", id=inside.id)) == Duplicate(inside.id)
    await caller.commit()

    assert await engine.executions.submit("ship", b"2", key="order-2") == Duplicate(inside.id)
    assert (await count_rows(joined))["execution"] == 2


async def test_refusal_does_not_affect_the_transaction(joined: JoinedProgram) -> None:
    engine, caller = joined.engine, joined.caller
    existing = await engine.executions.submit("ship", b"1", key="order-1")
    await engine.lanes.drain("old")

    await caller.note("kept")
    for refused_submission in (
        Submission(kind="ship", payload=b"2", key="order-1"),
        Submission(kind="ship", payload=b"2", id=existing.id),
        # The key is unused, so the engine inserts it before it finds out that the id is in use.
        Submission(kind="ship", payload=b"2", id=existing.id, key="order-2"),
    ):
        with pytest.raises(Conflict) as conflict:
            await caller.submit(refused_submission)
        assert conflict.value.code == "idempotency_mismatch"
    for refused_submission in (Submission(kind="ship", lane="old"), Submission(kind="ship", lane="old", key="order-3")):
        with pytest.raises(Refused) as refused:
            await caller.submit(refused_submission)
        assert refused.value.code == "lane_draining"
    with pytest.raises(InvalidRequest):
        await caller.submit("ship")  # type: ignore[arg-type]
    accepted = await caller.submit(Submission(kind="ship", payload=b"3", key="order-4"))
    await caller.commit()

    assert await notes(joined.store) == ["kept"]
    keys = await joined.store.query(
        "SELECT key, execution_id FROM ff.submission_key WHERE namespace = ? ORDER BY key", engine.namespace
    )
    assert [(row["key"], str(row["execution_id"])) for row in keys] == [
        ("order-1", str(existing.id)),
        ("order-4", str(accepted.id)),
    ]
    assert (await count_rows(joined))["execution"] == 2
