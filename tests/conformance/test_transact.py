"""transact: the user's code and the step that records it commit together, on the engine's own transaction."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from flowfabric.engine import Conflict, Engine, InvalidRequest, Lease, Refused, Step, StepStatus, Unavailable
from flowfabric.testing import VirtualClock
from tests.facts import nothing_written, refused
from tests.scenarios import leased
from tests.stores import PostgresTestStore, TestStore

CREATE = "CREATE TABLE ff.paid (amount INTEGER PRIMARY KEY)"


@pytest.fixture
async def table(engine: Engine, store: TestStore) -> str:
    """A table of the user's own in the same database."""
    await store.query(CREATE)
    return f'"{store.schema}".paid' if isinstance(store, PostgresTestStore) else "ff_paid"


def running(store: TestStore, *statements: str, then: Callable[[], object] = lambda: None) -> Callable[[Any], Any]:
    """A body that executes statements and then does something, in the way of the backend."""

    async def on_postgres(connection: Any) -> object:
        for statement in statements:
            await connection.execute(statement)
        return then()

    def on_sqlite(connection: Any) -> object:
        for statement in statements:
            connection.execute(statement)
        return then()

    return on_postgres if isinstance(store, PostgresTestStore) else on_sqlite


def step(_: object = None) -> Step:
    return Step("pay", b"1")


async def paid(store: TestStore) -> list[int]:
    return [row["amount"] for row in await store.query("SELECT amount FROM ff.paid ORDER BY amount")]


async def recorded(engine: Engine, lease: Lease) -> list[tuple[str, bytes]]:
    return [(item.name, item.payload) for item in await engine.executions.steps(lease.execution_id)]


async def test_rows_and_step_commit_together(engine: Engine, store: TestStore, table: str) -> None:
    lease = await leased(engine)
    body = running(store, f"INSERT INTO {table} VALUES (7)", then=lambda: "seven")
    answer = await engine.leases.transact(lease.fence, body, lambda found: Step("pay", found.encode()))
    assert answer == "seven"
    assert (await paid(store), await recorded(engine, lease)) == ([7], [("pay", b"seven")])
    await engine.leases.checkpoint(lease.fence, [Step("next")])
    assert [item.seq for item in await engine.executions.steps(lease.execution_id)] == [1, 2]


class Oops(Exception):
    """What a user's function raises."""


def oops() -> object:
    raise Oops("no")


async def test_what_the_body_raises_takes_all_back_and_is_raised_as_it_is(
    engine: Engine, store: TestStore, table: str
) -> None:
    lease = await leased(engine)
    for error in (Oops("no"), OSError("no"), TimeoutError(), Refused("theirs", "not ours")):

        def fail(error: Exception = error) -> object:
            raise error

        with pytest.raises(type(error)) as caught:
            await engine.leases.transact(
                lease.fence, running(store, f"INSERT INTO {table} VALUES (1)", then=fail), step
            )
        assert caught.value is error
    assert (await paid(store), await recorded(engine, lease)) == ([], [])


async def test_an_error_of_the_users_own_statement_is_the_drivers(engine: Engine, store: TestStore, table: str) -> None:
    lease = await leased(engine)
    body = running(store, f"INSERT INTO {table} VALUES (1)", f"INSERT INTO {table} VALUES (1)")
    with pytest.raises((asyncpg.UniqueViolationError, sqlite3.IntegrityError)):
        await engine.leases.transact(lease.fence, body, step)
    assert (await paid(store), await recorded(engine, lease)) == ([], [])


async def test_what_recording_raises_takes_all_back(engine: Engine, store: TestStore, table: str) -> None:
    lease = await leased(engine)
    body = running(store, f"INSERT INTO {table} VALUES (1)")
    with pytest.raises(Oops):
        await engine.leases.transact(lease.fence, body, lambda _: oops())  # type: ignore[arg-type,return-value]
    no_step = engine.leases.transact(lease.fence, body, lambda _: "pay")  # type: ignore[arg-type,return-value]
    await refused(no_step, "invalid_type", InvalidRequest)
    assert (await paid(store), await recorded(engine, lease)) == ([], [])


async def test_a_former_owner_does_not_get_to_run_its_body(
    engine: Engine, store: TestStore, clock: VirtualClock
) -> None:
    lease, expired = await leased(engine), await leased(engine)
    await engine.operator.revoke_lease(lease.execution_id)
    clock.advance("31s")
    ran: list[str] = []
    async with nothing_written(store):
        for fence, code in ((lease.fence, "lease_revoked"), (expired.fence, "lease_expired")):
            body = running(store, then=lambda: ran.append("ran"))
            await refused(engine.leases.transact(fence, body, step), code)
    assert ran == []


async def test_a_step_that_is_recorded_is_never_performed_again(engine: Engine, store: TestStore, table: str) -> None:
    lease = await leased(engine)
    await engine.leases.transact(lease.fence, running(store, f"INSERT INTO {table} VALUES (1)"), step)
    again = engine.leases.transact(lease.fence, running(store, f"INSERT INTO {table} VALUES (2)"), step)
    await refused(again, "step_already_recorded", Conflict)
    assert await paid(store) == [1]


async def test_an_open_step_is_closed_by_it(engine: Engine, store: TestStore, table: str) -> None:
    lease = await leased(engine)
    await engine.leases.checkpoint(lease.fence, [Step("pay", b"started", status=StepStatus.OPEN)])
    await engine.leases.transact(lease.fence, running(store, f"INSERT INTO {table} VALUES (1)"), step)
    assert (await paid(store), await recorded(engine, lease)) == ([1], [("pay", b"1")])


async def test_a_function_of_the_wrong_kind_is_refused_before_it_runs(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    ran: list[str] = []

    async def asynchronous(connection: object) -> None:
        ran.append("ran")

    def plain(connection: object) -> None:
        ran.append("ran")

    wrong = plain if isinstance(store, PostgresTestStore) else asynchronous
    async with nothing_written(store):
        await refused(engine.leases.transact(lease.fence, wrong, step), "invalid_type", InvalidRequest)
    assert ran == []


async def test_the_users_code_cannot_end_the_transaction_unseen(engine: Engine, store: TestStore, table: str) -> None:
    lease = await leased(engine)
    for ending in ("COMMIT", "ROLLBACK"):
        body = running(store, ending)
        if isinstance(store, PostgresTestStore):
            await refused(engine.leases.transact(lease.fence, body, step), "no_transaction", InvalidRequest)
        else:
            with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
                await engine.leases.transact(lease.fence, body, step)
    assert await recorded(engine, lease) == []
    await engine.leases.transact(lease.fence, running(store, f"INSERT INTO {table} VALUES (1)"), step)
    assert await paid(store) == [1]


async def test_savepoints_of_the_user_are_fine(engine: Engine, store: TestStore, table: str) -> None:
    lease = await leased(engine)
    statements = (
        f"INSERT INTO {table} VALUES (1)", "SAVEPOINT mine", f"INSERT INTO {table} VALUES (2)",
        "ROLLBACK TO SAVEPOINT mine", f"INSERT INTO {table} VALUES (3)",
    )  # fmt: skip
    await engine.leases.transact(lease.fence, running(store, *statements), step)
    assert await paid(store) == [1, 3]


async def test_others_work_on_while_some_fail(engine: Engine, store: TestStore, table: str) -> None:
    leases = [await leased(engine) for _ in range(6)]
    calls = [
        engine.leases.transact(
            lease.fence,
            running(store, f"INSERT INTO {table} VALUES ({number})", then=oops if number % 2 else lambda: None),
            step,
        )
        for number, lease in enumerate(leases)
    ]
    renewals = [engine.leases.renew(lease.fence) for lease in leases]
    answers = await asyncio.gather(*calls, *renewals, return_exceptions=True)
    assert [type(answer).__name__ for answer in answers[:6]] == ["NoneType", "Oops"] * 3
    assert [type(answer).__name__ for answer in answers[6:]] == ["Renewed"] * 6
    assert await paid(store) == [0, 2, 4]


async def test_settings_of_the_engine_do_not_reach_the_user_nor_the_other_way_round(
    engine: Engine, store: TestStore
) -> None:
    lease = await leased(engine)
    if isinstance(store, PostgresTestStore):

        async def look(connection: Any) -> list[Any]:
            assert isinstance(connection, asyncpg.Connection)
            names = ("enable_seqscan", "plan_cache_mode", "search_path", "TimeZone")
            found = [await connection.fetchval(f"SHOW {name}") for name in names]
            await connection.execute("SET search_path = pg_catalog")
            return found

        shown = await engine.leases.transact(lease.fence, look, step)
        assert shown == ["on", "auto", '"$user", public', "UTC"]
        assert await engine.leases.transact(lease.fence, look, lambda _: Step("again")) == shown
    else:

        def watch(connection: sqlite3.Connection) -> Any:
            assert isinstance(connection, sqlite3.Connection)
            connection.row_factory = sqlite3.Row
            return sqlite3.Connection.execute(connection, "SELECT 1").fetchone()["1"]

        assert await engine.leases.transact(lease.fence, watch, step) == 1
        found = await engine.leases.transact(
            lease.fence, lambda connection: connection.execute("SELECT 1").fetchone(), lambda _: Step("again")
        )
        assert (type(found), found) == (tuple, (1,))
        pragma = running(store, "PRAGMA wal_autocheckpoint = 1000")
        with pytest.raises(sqlite3.DatabaseError):
            await engine.leases.transact(lease.fence, pragma, lambda _: Step("third"))
    await engine.leases.complete(lease.fence, b"out")


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_a_conflict_runs_the_whole_of_it_again(engine: Engine, store: TestStore, table: str) -> None:
    lease = await leased(engine)
    tries: list[int] = []

    async def body(connection: Any) -> int:
        await connection.execute(f"INSERT INTO {table} VALUES ({len(tries)})")
        tries.append(1)
        if len(tries) < 3:
            await connection.execute("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")
        return len(tries)

    assert await engine.leases.transact(lease.fence, body, step) == 3
    assert await paid(store) == [2]

    async def hopeless(connection: Any) -> None:
        await connection.execute("DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$")

    lost = engine.leases.transact(lease.fence, hopeless, lambda _: Step("other"))
    await refused(lost, "retry_exhausted", Unavailable)


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_an_error_that_the_user_swallowed_still_takes_all_back(
    engine: Engine, store: TestStore, table: str
) -> None:
    lease = await leased(engine)

    async def careless(connection: Any) -> None:
        await connection.execute(f"INSERT INTO {table} VALUES (1)")
        try:
            await connection.execute("SELECT 1 / 0")
        except asyncpg.DivisionByZeroError:
            return

    await refused(engine.leases.transact(lease.fence, careless, step), "transaction_aborted", InvalidRequest)
    assert (await paid(store), await recorded(engine, lease)) == ([], [])


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_nobody_takes_the_lease_away_while_the_body_runs(engine: Engine, store: TestStore, table: str) -> None:
    lease = await leased(engine)
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def slow(connection: Any) -> None:
        await connection.execute(f"INSERT INTO {table} VALUES (1)")
        inside.set()
        await go_on.wait()

    transact = asyncio.create_task(engine.leases.transact(lease.fence, slow, step))
    await inside.wait()
    revoke = asyncio.create_task(engine.operator.revoke_lease(lease.execution_id))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(revoke), 0.2)
    go_on.set()
    await transact
    await revoke
    assert (await paid(store), await recorded(engine, lease)) == ([1], [("pay", b"1")])
