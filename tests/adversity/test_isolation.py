"""A failure of one writer, batch, duty or reader does not affect the others."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from flowfabric.engine import (
    Created,
    Duplicate,
    Engine,
    FlowFabricError,
    Lease,
    Policy,
    State,
    Submission,
    Unavailable,
    connect,
)
from flowfabric.reconcilers.duty import Tick
from flowfabric.store.ports import Store
from flowfabric.store.transaction import Transaction
from flowfabric.testing import VirtualClock
from tests.scenarios import KEEPING, completed, leased, submitted
from tests.stores import PostgresTestStore, SqliteTestStore, TestStore, opened


class Failing:
    """A wrapper of a connection that makes one statement fail."""

    def __init__(self, connection: sqlite3.Connection, statement: str, error: BaseException) -> None:
        self._connection, self._statement, self._error = connection, statement, error
        self.left = 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, text: str, *arguments: Any) -> sqlite3.Cursor:
        if text == self._statement and self.left:
            self.left -= 1
            raise self._error
        return self._connection.execute(text, *arguments)


async def test_failed_checkpoint_does_not_stop_the_writer(tmp_path: Path) -> None:
    async with opened(SqliteTestStore(tmp_path)) as engine:
        writer = engine._context.store._writer  # type: ignore[attr-defined]

        def refuse() -> None:
            raise PermissionError(13, "no")

        writer._checkpointer.checkpoint_if_grown = refuse
        await submitted(engine)
        await asyncio.wait_for(submitted(engine), timeout=10)


async def test_callers_get_an_error_when_the_writer_dies(tmp_path: Path) -> None:
    async with opened(SqliteTestStore(tmp_path)) as engine:
        writer = engine._context.store._writer  # type: ignore[attr-defined]
        writer._commit_or_fail = None
        for _ in range(2):
            with pytest.raises((TypeError, Unavailable)):
                await asyncio.wait_for(submitted(engine), timeout=10)


async def test_refusal_is_not_raised_if_its_commit_failed(tmp_path: Path) -> None:
    store = SqliteTestStore(tmp_path)
    async with opened(store) as engine:
        await submitted(engine)
        writer = engine._context.store._writer  # type: ignore[attr-defined]
        writer._connection = Failing(writer._connection, "COMMIT", sqlite3.OperationalError("disk is full"))
        bodies = [engine.executions.submit("job", body, key="one") for body in (b"a", b"b")]
        results: list[Any] = await asyncio.gather(*bodies, return_exceptions=True)
        assert {type(result) for result in results} <= {Unavailable, Created}
        assert any(isinstance(result, Unavailable) for result in results)


async def test_uncommitted_duplicate_delays_no_other_submit(postgres: Any) -> None:
    store = PostgresTestStore(postgres.dsn)
    async with opened(store, statement_timeout=20) as engine:
        await submitted(engine)
        twin, other = uuid4(), await asyncpg.connect(store.url)
        async with other.transaction():
            await engine.executions.submit_in_transaction(other, Submission(kind="job", id=twin))
            waiting = asyncio.create_task(engine.executions.submit("job", id=twin))
            work = [engine.executions.submit("job") for _ in range(5)]
            results = await asyncio.wait_for(asyncio.gather(*work), timeout=5)
            assert all(isinstance(result, Created) for result in results)
            assert not waiting.done()
        assert not isinstance(await waiting, Created)
        await other.close()
    await store.drop()


async def test_uncommitted_duplicate_delays_no_other_item_of_its_batch(postgres: Any) -> None:
    store = PostgresTestStore(postgres.dsn)
    async with opened(store, statement_timeout=20) as engine:
        await submitted(engine)
        twin, other = uuid4(), await asyncpg.connect(store.url)
        async with other.transaction():
            await engine.executions.submit_in_transaction(other, Submission(kind="job", id=twin))
            batch = [Submission(kind="job"), Submission(kind="job", id=twin), Submission(kind="job")]
            waiting = asyncio.create_task(engine.executions.submit_many(batch))
            async with asyncio.timeout(5):
                while (await engine.executions.count())[State.WAITING].value < 3:  # noqa: ASYNC110 - no event to await
                    await asyncio.sleep(0.01)
            assert not waiting.done()
        first, second, third = await waiting
        assert isinstance(first, Created) and isinstance(third, Created)
        assert second == Duplicate(twin)
        await other.close()
    await store.drop()


async def test_failing_duty_does_not_stop_the_other_duties(store: TestStore) -> None:
    class Broken:
        name = "lease_expiry"

        async def tick(self, store: Store) -> Tick:
            raise Unavailable("statement_timeout", "always")

    async with opened(store) as engine:
        duties = engine.reconcilers._duties
        engine.reconcilers._duties = [Broken(), *duties[1:]]
        await leased(engine, lease_ttl=1)
        delayed = await submitted(engine, delay="300ms")
        async with engine.reconcilers.run_in_background(), asyncio.timeout(15):
            while (await engine.executions.describe(delayed)).state is State.DELAYED:  # noqa: ASYNC110 - no event to await
                await asyncio.sleep(0.02)


async def test_dedup_window_starts_after_the_wait_for_the_key(postgres: Any) -> None:
    store = PostgresTestStore(postgres.dsn)
    async with opened(store) as engine:
        await submitted(engine)
        other = await asyncpg.connect(store.url)
        transaction = other.transaction()
        await transaction.start()
        await engine.executions.submit_in_transaction(other, Submission(kind="job", key="k"))
        policy = Policy(dedup_window="1s")
        waiting = asyncio.create_task(engine.executions.submit("job", key="k", policy=policy))
        await blocked(store)
        await asyncio.sleep(1.2)
        await transaction.rollback()
        first = await waiting
        assert isinstance(first, Created)
        assert (await engine.executions.submit("job", key="k", policy=policy)).id == first.id
        await other.close()
    await store.drop()


async def test_key_of_an_open_transaction_is_not_taken_over_after_its_window(postgres: Any) -> None:
    store = PostgresTestStore(postgres.dsn)
    async with opened(store) as engine:
        await submitted(engine)
        other = await asyncpg.connect(store.url)
        transaction = other.transaction()
        await transaction.start()
        body = Submission(kind="job", key="k", policy=Policy(dedup_window="10ms"))
        first = await engine.executions.submit_in_transaction(other, body)
        await asyncio.sleep(0.05)
        waiting = asyncio.create_task(engine.executions.submit(body))
        await blocked(store)
        await transaction.commit()
        assert await waiting == Duplicate(first.id)
        await other.close()
    await store.drop()


async def blocked(store: PostgresTestStore) -> None:
    """Wait until a statement on the server waits for another transaction."""
    async with asyncio.timeout(10):
        while not await store.query("SELECT 1 FROM pg_locks WHERE NOT granted"):  # noqa: ASYNC110 - no event to await
            await asyncio.sleep(0.01)


async def test_read_with_several_statements_sees_one_snapshot(postgres: Any, clock: VirtualClock) -> None:
    """Test only PostgreSQL, where each statement has its own snapshot by default.

    SQLite always reads inside one transaction.
    """
    store = PostgresTestStore(postgres.dsn)
    async with opened(store, clock) as engine, opened(store, clock) as second:
        id_ = await completed(engine, clock)

        async def body(tx: Transaction) -> bool:
            before = await tx.executions.get(None, [id_])
            await second.operator.replay(id_)
            return before == await tx.executions.get(None, [id_])

        assert await engine._context.store.read(body)
        assert (await engine.executions.describe(id_)).generation == 1
    await store.drop()


async def test_relative_path_keeps_the_folder_it_was_opened_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    async with connect("jobs.db", durable=False) as engine:
        id_ = await submitted(engine)
        os.chdir(tmp_path / "elsewhere")
        assert (await engine.executions.describe(id_)).id == id_
    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_store_that_refuses_every_write_is_not_treated_as_bad_rows(postgres: Any) -> None:
    store = PostgresTestStore(postgres.dsn)
    async with opened(store) as engine:
        lease = await leased(engine, lease_ttl=1)
        await store.query("ALTER TABLE ff.event RENAME TO hidden")
        with pytest.raises(Unavailable) as refused:
            await engine.leases.complete(lease.fence, b"1")
        assert refused.value.code == "storage_refused"
        await asyncio.sleep(1.1)
        with pytest.raises(Unavailable):
            await engine.reconcilers.tick()
        await store.query("ALTER TABLE ff.hidden RENAME TO event")
        ticks = await engine.reconcilers.tick()
        assert ticks[0].done == 1
        assert (await engine.executions.describe(lease.execution_id)).state is State.WAITING
    await store.drop()


async def test_error_of_a_submit_carries_the_id_for_the_retry(tmp_path: Path) -> None:
    store = SqliteTestStore(tmp_path)
    async with opened(store) as engine:
        await submitted(engine)
        writer = engine._context.store._writer  # type: ignore[attr-defined]
        writer._connection = Failing(writer._connection, "COMMIT", sqlite3.OperationalError("no"))
        with pytest.raises(Unavailable) as lost:
            await engine.executions.submit("job", b"x")
        assert isinstance(await engine.executions.submit("job", b"x", id=lost.value.fields["id"]), Created)
        writer._connection.left = 1
        results = await engine.executions.submit_many([Submission(kind="job"), Submission(kind="job")])
        assert all(isinstance(result, FlowFabricError) and "id" in result.fields for result in results)


async def test_repeated_reclaim_that_ended_the_execution_returns_the_same_result(
    engine: Engine, clock: VirtualClock
) -> None:
    policy = Policy(on_lease_loss=KEEPING.on_lease_loss, max_reclaims=0)
    lease = await leased(engine, policy=policy)
    assert isinstance(lease, Lease)
    clock.advance("31s")
    await engine.reconcilers.tick()
    grant = await engine.operator.grant_reclaim(lease.execution_id, "w")
    first = await engine.leases.reclaim(grant, "w")
    assert await engine.leases.reclaim(grant, "w") == first


async def test_id_is_refused_while_its_history_is_kept(engine: Engine, clock: VirtualClock) -> None:
    id_ = await completed(engine, clock)
    other = await submitted(engine)
    clock.advance("31d")
    await engine.reconcilers.tick()
    with pytest.raises(FlowFabricError) as refused:
        await engine.executions.submit("job", id=id_)
    assert refused.value.code == "idempotency_mismatch"
    [lease] = await engine.leases.claim(["default"], "w", limit=10)
    assert lease.execution_id == other


async def test_purge_removes_every_key_of_an_execution(engine: Engine, clock: VirtualClock) -> None:
    policy = Policy(dedup_window="1d", retention="1d")
    id_ = await submitted(engine, policy=policy, key="one", id=uuid4())
    await engine.executions.submit("job", b"in", policy=policy, key="two", id=id_)
    await engine.operator.cancel(id_)
    clock.advance("2d")
    await engine.reconcilers.tick()
    assert isinstance(await engine.executions.submit("job", b"in", policy=policy, key="two"), Created)
