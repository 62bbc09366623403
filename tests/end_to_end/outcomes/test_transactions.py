"""Steps in a transaction of the store: fencing, retries, sync and async functions, and rejected calls."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flowfabric import App, ExecutionFailed, current, step, sync
from flowfabric.testing import Kit
from tests.stores import PostgresSchemas, SqliteTestStore, TestStore

INSERT = "INSERT INTO {table} VALUES ({amount})"


@dataclass(frozen=True)
class Till:
    """A kit with a table `paid` in its database, and a method that returns functions that write to the table."""

    kit: Kit
    store: TestStore
    table: str

    def paying(self, amount: int, then: Callable[[], object] = lambda: None) -> Callable[..., Any]:
        """Return a function for `step.tx` that writes the amount, calls `then` and returns the amount."""
        statement = INSERT.format(table=self.table, amount=amount)

        def pay(connection: sqlite3.Connection) -> int:
            connection.execute(statement)
            then()
            return amount

        async def pay_async(connection: Any) -> int:
            await connection.execute(statement)
            then()
            return amount

        return pay if self.store.name == "sqlite" else pay_async

    async def paid(self) -> list[int]:
        """Return the stored amounts."""
        return [row["amount"] for row in await self.store.query(f"SELECT amount FROM {self.table} ORDER BY amount")]


@pytest.fixture(params=["file", "postgres"])
async def till(app: App, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Till]:
    if request.param == "file":
        store = SqliteTestStore(tmp_path)
        async with Kit(app, store.url, durable=False) as kit:
            await store.query("CREATE TABLE paid (amount INTEGER)")
            yield Till(kit, store, "paid")
        return
    schemas: PostgresSchemas = request.getfixturevalue("schemas")
    schema = await schemas.take()
    async with Kit(app, schema.url, schema=schema.schema, durable=False) as kit:
        await schema.query("CREATE TABLE ff.paid (amount INTEGER)")
        yield Till(kit, schema, f'"{schema.schema}".paid')
    await schema.query("DROP TABLE ff.paid")
    await schemas.give_back(schema)


async def test_failed_transaction_is_rolled_back_and_retried(app: App, till: Till) -> None:
    tries: list[int] = []

    def fails_once() -> None:
        tries.append(len(tries))
        if len(tries) == 1:
            raise ConnectionError

    @app.task
    async def task() -> int:
        return int(await step.tx(till.paying(7, fails_once)))

    assert await till.kit.run(task) == 7
    assert await till.paid() == [7]
    assert len(tries) == 2


async def test_transaction_whose_result_cannot_be_stored_is_rolled_back(app: App, till: Till) -> None:
    pay = till.paying(7)
    pay.__annotations__["return"] = dict[str, int]

    @app.task
    async def task() -> None:
        await step.tx(pay)

    with pytest.raises(ExecutionFailed, match="ValueRefused"):
        await till.kit.run(task)
    assert await till.paid() == []


async def test_run_that_lost_its_lease_writes_no_rows(app: App, till: Till) -> None:
    attempts: list[int] = []

    @app.task
    async def task() -> int:
        attempts.append(current().attempt)
        if attempts == [0]:
            # Revoke outside of a step, so that the transaction detects the loss first.
            await till.kit.engine.operator.revoke_lease(current().execution_id)
        return int(await step.tx(till.paying(current().attempt)))

    assert await till.kit.run(task) == 1
    assert attempts == [0, 1]
    assert await till.paid() == [1]


async def test_plain_task_can_use_transactions(app: App, till: Till) -> None:
    @app.task
    def task() -> int:
        return int(sync.step.tx(till.paying(7)))

    assert await till.kit.run(task) == 7
    assert await till.paid() == [7]


async def test_transaction_function_of_the_wrong_kind_is_rejected_before_any_write(app: App, till: Till) -> None:
    called: list[str] = []

    def plain(connection: Any) -> None:
        called.append("called")

    async def asynchronous(connection: Any) -> None:
        called.append("called")

    @app.task(retries=0)
    async def task() -> None:
        await step.tx(asynchronous if till.store.name == "sqlite" else plain)

    kind = (
        "a plain function that takes a sqlite3"
        if till.store.name == "sqlite"
        else "an async function that takes an asyncpg"
    )
    with pytest.raises(ExecutionFailed, match=f"must be {kind} connection"):
        await till.kit.run(task)
    assert called == []


async def test_durable_call_in_a_transaction_is_rejected_and_nothing_is_written(app: App, till: Till) -> None:
    def nested() -> None:
        _ = step(abs, -1)

    @app.task(retries=0)
    async def task() -> None:
        await step.tx(till.paying(7, nested))

    with pytest.raises(ExecutionFailed, match="a step cannot contain durable calls"):
        await till.kit.run(task)
    assert await till.paid() == []


@pytest.mark.parametrize("till", ["postgres"], indirect=True)
async def test_serialization_failure_reruns_the_function_of_a_transaction(app: App, till: Till) -> None:
    tries: list[int] = []

    async def pay(connection: Any) -> int:
        tries.append(len(tries))
        await connection.execute(INSERT.format(table=till.table, amount=len(tries)))
        if len(tries) == 1:
            await connection.execute("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")
        return len(tries)

    @app.task(retries=0)
    async def task() -> int:
        return int(await step.tx(pay))

    assert await till.kit.run(task) == 2
    assert await till.paid() == [2]


async def test_current_works_in_the_function_of_a_transaction(app: App, till: Till) -> None:
    keys: list[str] = []

    @app.task
    async def task() -> None:
        await step.options(name="pay").tx(till.paying(7, lambda: keys.append(current().idempotency_key)))

    handle = await till.kit.start(task)

    assert keys == [f"{handle.id}/pay"]


async def test_recorded_transaction_does_not_run_again_in_later_attempts(app: App, till: Till) -> None:
    bodies: list[int] = []

    @app.task(retries=1)
    async def task() -> int:
        bodies.append(int(await step.tx(till.paying(7))))
        if len(bodies) == 1:
            raise ConnectionError
        return bodies[-1]

    assert await till.kit.run(task) == 7
    assert bodies == [7, 7]
    assert await till.paid() == [7]
