"""Tests of transact, which commits the caller's statements and the recorded step together."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from flowfabric.engine import Conflict, Engine, InvalidRequest, Lease, Refused, Step, StepStatus, Unavailable
from flowfabric.testing import VirtualClock
from tests.expectations import nothing_written, refused
from tests.scenarios import leased
from tests.stores import PostgresTestStore, TestStore

CREATE = "CREATE TABLE ff.paid (amount INTEGER PRIMARY KEY)"


@pytest.fixture
async def table(engine: Engine, store: TestStore) -> str:
    """Create a table of the user in the same database and return its name."""
    await store.query(CREATE)
    return f'"{store.schema}".paid' if isinstance(store, PostgresTestStore) else "ff_paid"


def make_body(store: TestStore, *statements: str, then: Callable[[], object] = lambda: None) -> Callable[[Any], Any]:
    """Return a body that executes the statements and then calls `then`. It is async only on PostgreSQL."""

    async def on_postgres(connection: Any) -> object:
        for statement in statements:
            await connection.execute(statement)
        return then()

    def on_sqlite(connection: Any) -> object:
        for statement in statements:
            connection.execute(statement)
        return then()

    return on_postgres if isinstance(store, PostgresTestStore) else on_sqlite


def make_step(_: object = None) -> Step:
    return Step("pay", b"1")


async def read_paid(store: TestStore) -> list[int]:
    return [row["amount"] for row in await store.query("SELECT amount FROM ff.paid ORDER BY amount")]


async def read_steps(engine: Engine, lease: Lease) -> list[tuple[str, bytes]]:
    return [(make_step.name, make_step.payload) for make_step in await engine.executions.steps(lease.execution_id)]


async def test_rows_and_step_commit_together(engine: Engine, store: TestStore, table: str) -> None:
    lease = await leased(engine)
    body = make_body(store, f"INSERT INTO {table} VALUES (7)", then=lambda: "seven")
    outcome = await engine.leases.transact(lease.fence, body, lambda result: Step("pay", result.encode()))
    assert outcome == "seven"
    assert (await read_paid(store), await read_steps(engine, lease)) == ([7], [("pay", b"seven")])
    await engine.leases.checkpoint(lease.fence, [Step("next")])
    assert [make_step.seq for make_step in await engine.executions.steps(lease.execution_id)] == [1, 2]


class UserError(Exception):
    """An exception raised by the user's function."""


def raise_user_error() -> object:
    raise UserError("no")


async def test_exception_of_the_body_rolls_back_and_is_raised_unchanged(
    engine: Engine, store: TestStore, table: str
) -> None:
    lease = await leased(engine)
    for error in (UserError("no"), OSError("no"), TimeoutError(), Refused("theirs", "not ours")):

        def fail(error: Exception = error) -> object:
            raise error

        with pytest.raises(type(error)) as caught:
            await engine.leases.transact(
                lease.fence, make_body(store, f"INSERT INTO {table} VALUES (1)", then=fail), make_step
            )
        assert caught.value is error
    assert (await read_paid(store), await read_steps(engine, lease)) == ([], [])


async def test_error_of_the_user_statement_is_the_driver_error(engine: Engine, store: TestStore, table: str) -> None:
    lease = await leased(engine)
    body = make_body(store, f"INSERT INTO {table} VALUES (1)", f"INSERT INTO {table} VALUES (1)")
    with pytest.raises((asyncpg.UniqueViolationError, sqlite3.IntegrityError)):
        await engine.leases.transact(lease.fence, body, make_step)
    assert (await read_paid(store), await read_steps(engine, lease)) == ([], [])


async def test_exception_while_recording_rolls_back(engine: Engine, store: TestStore, table: str) -> None:
    lease = await leased(engine)
    body = make_body(store, f"INSERT INTO {table} VALUES (1)")
    with pytest.raises(UserError):
        await engine.leases.transact(lease.fence, body, lambda _: raise_user_error())  # type: ignore[arg-type,return-value]
    no_step = engine.leases.transact(lease.fence, body, lambda _: "pay")  # type: ignore[arg-type,return-value]
    await refused(no_step, "invalid_type", InvalidRequest)
    assert (await read_paid(store), await read_steps(engine, lease)) == ([], [])


async def test_body_of_a_former_owner_does_not_run(engine: Engine, store: TestStore, clock: VirtualClock) -> None:
    lease, expired = await leased(engine), await leased(engine)
    await engine.operator.revoke_lease(lease.execution_id)
    clock.advance("31s")
    ran: list[str] = []
    async with nothing_written(store):
        for fence, code in ((lease.fence, "lease_revoked"), (expired.fence, "lease_expired")):
            body = make_body(store, then=lambda: ran.append("ran"))
            await refused(engine.leases.transact(fence, body, make_step), code)
    assert ran == []


async def test_recorded_step_is_never_run_again(engine: Engine, store: TestStore, table: str) -> None:
    lease = await leased(engine)
    await engine.leases.transact(lease.fence, make_body(store, f"INSERT INTO {table} VALUES (1)"), make_step)
    repeated = engine.leases.transact(lease.fence, make_body(store, f"INSERT INTO {table} VALUES (2)"), make_step)
    await refused(repeated, "step_already_recorded", Conflict)
    assert await read_paid(store) == [1]


async def test_repeated_call_does_not_run_the_body_of_a_recorded_step(
    engine: Engine, store: TestStore, table: str
) -> None:
    lease, runs = await leased(engine), list[str]()
    body = make_body(store, f"INSERT INTO {table} VALUES (1)", then=lambda: runs.append("ran"))
    await engine.leases.transact(lease.fence, body, make_step, repeated_step="pay")
    repeated = engine.leases.transact(lease.fence, body, make_step, repeated_step="pay")
    await refused(repeated, "step_already_recorded", Conflict)
    assert (await read_paid(store), runs) == ([1], ["ran"])


async def test_transact_closes_an_open_step(engine: Engine, store: TestStore, table: str) -> None:
    lease = await leased(engine)
    await engine.leases.checkpoint(lease.fence, [Step("pay", b"started", status=StepStatus.OPEN)])
    await engine.leases.transact(lease.fence, make_body(store, f"INSERT INTO {table} VALUES (1)"), make_step)
    assert (await read_paid(store), await read_steps(engine, lease)) == ([1], [("pay", b"1")])


async def test_function_of_the_wrong_kind_is_refused_before_it_runs(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    ran: list[str] = []

    async def asynchronous(connection: object) -> None:
        ran.append("ran")

    def synchronous(connection: object) -> None:
        ran.append("ran")

    wrong_body = synchronous if isinstance(store, PostgresTestStore) else asynchronous
    async with nothing_written(store):
        await refused(engine.leases.transact(lease.fence, wrong_body, make_step), "invalid_type", InvalidRequest)
    assert ran == []


async def test_user_code_cannot_end_the_transaction(engine: Engine, store: TestStore, table: str) -> None:
    lease = await leased(engine)
    for ending in ("COMMIT", "ROLLBACK", "COMMIT; BEGIN", f"ROLLBACK; BEGIN; INSERT INTO {table} VALUES (1)"):
        body = make_body(store, ending)
        if isinstance(store, PostgresTestStore):
            await refused(engine.leases.transact(lease.fence, body, make_step), "no_transaction", InvalidRequest)
        else:
            with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
                await engine.leases.transact(lease.fence, body, make_step)
    assert await read_steps(engine, lease) == []
    await engine.leases.transact(lease.fence, make_body(store, f"INSERT INTO {table} VALUES (1)"), make_step)
    assert await read_paid(store) == [1]


async def test_user_code_may_use_savepoints(engine: Engine, store: TestStore, table: str) -> None:
    lease = await leased(engine)
    statements = (
        f"INSERT INTO {table} VALUES (1)", "SAVEPOINT mine", f"INSERT INTO {table} VALUES (2)",
        "ROLLBACK TO SAVEPOINT mine", f"INSERT INTO {table} VALUES (3)",
    )  # fmt: skip
    await engine.leases.transact(lease.fence, make_body(store, *statements), make_step)
    assert await read_paid(store) == [1, 3]


async def test_failing_bodies_do_not_affect_other_calls(engine: Engine, store: TestStore, table: str) -> None:
    leases = [await leased(engine) for _ in range(6)]
    calls = [
        engine.leases.transact(
            lease.fence,
            make_body(
                store, f"INSERT INTO {table} VALUES ({number})", then=raise_user_error if number % 2 else lambda: None
            ),
            make_step,
        )
        for number, lease in enumerate(leases)
    ]
    renewals = [engine.leases.renew(lease.fence) for lease in leases]
    outcomes = await asyncio.gather(*calls, *renewals, return_exceptions=True)
    assert [type(outcome).__name__ for outcome in outcomes[:6]] == ["NoneType", "UserError"] * 3
    assert [type(outcome).__name__ for outcome in outcomes[6:]] == ["Renewed"] * 6
    assert await read_paid(store) == [0, 2, 4]


async def test_settings_of_engine_and_user_do_not_affect_each_other(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    if isinstance(store, PostgresTestStore):

        async def read_settings(connection: Any) -> list[Any]:
            assert isinstance(connection, asyncpg.Connection)
            names = ("enable_seqscan", "plan_cache_mode", "search_path", "TimeZone")
            settings = [await connection.fetchval(f"SHOW {name}") for name in names]
            await connection.execute("SET search_path = pg_catalog")
            return settings

        settings = await engine.leases.transact(lease.fence, read_settings, make_step)
        assert settings == ["on", "auto", '"$user", public', "UTC"]
        assert await engine.leases.transact(lease.fence, read_settings, lambda _: Step("again")) == settings
    else:

        def fetch_row(connection: sqlite3.Connection) -> Any:
            assert isinstance(connection, sqlite3.Connection)
            connection.row_factory = sqlite3.Row
            return sqlite3.Connection.execute(connection, "SELECT 1").fetchone()["1"]

        assert await engine.leases.transact(lease.fence, fetch_row, make_step) == 1
        settings = await engine.leases.transact(
            lease.fence, lambda connection: connection.execute("SELECT 1").fetchone(), lambda _: Step("again")
        )
        assert (type(settings), settings) == (tuple, (1,))
        pragma = make_body(store, "PRAGMA wal_autocheckpoint = 1000")
        with pytest.raises(sqlite3.DatabaseError):
            await engine.leases.transact(lease.fence, pragma, lambda _: Step("third"))
    await engine.leases.complete(lease.fence, b"out")


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_serialization_conflict_runs_the_body_again(engine: Engine, store: TestStore, table: str) -> None:
    lease = await leased(engine)
    tries: list[int] = []

    async def body(connection: Any) -> int:
        await connection.execute(f"INSERT INTO {table} VALUES ({len(tries)})")
        tries.append(1)
        if len(tries) < 3:
            await connection.execute("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")
        return len(tries)

    assert await engine.leases.transact(lease.fence, body, make_step) == 3
    assert await read_paid(store) == [2]

    async def always_conflict(connection: Any) -> None:
        await connection.execute("DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$")

    call = engine.leases.transact(lease.fence, always_conflict, lambda _: Step("other"))
    await refused(call, "retry_exhausted", Unavailable)


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_swallowed_statement_error_still_rolls_back(engine: Engine, store: TestStore, table: str) -> None:
    lease = await leased(engine)

    async def swallow_error(connection: Any) -> None:
        await connection.execute(f"INSERT INTO {table} VALUES (1)")
        try:
            await connection.execute("SELECT 1 / 0")
        except asyncpg.DivisionByZeroError:
            return

    await refused(engine.leases.transact(lease.fence, swallow_error, make_step), "transaction_aborted", InvalidRequest)
    assert (await read_paid(store), await read_steps(engine, lease)) == ([], [])


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_lease_cannot_be_revoked_while_the_body_runs(engine: Engine, store: TestStore, table: str) -> None:
    lease = await leased(engine)
    started, may_finish = asyncio.Event(), asyncio.Event()

    async def slow(connection: Any) -> None:
        await connection.execute(f"INSERT INTO {table} VALUES (1)")
        started.set()
        await may_finish.wait()

    transact = asyncio.create_task(engine.leases.transact(lease.fence, slow, make_step))
    await started.wait()
    revoke = asyncio.create_task(engine.operator.revoke_lease(lease.execution_id))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(revoke), 0.2)
    may_finish.set()
    await transact
    await revoke
    assert (await read_paid(store), await read_steps(engine, lease)) == ([1], [("pay", b"1")])
