"""Test that the engine retries conflicts between transactions. A conflict that lasts raises `Unavailable`. It is never
reported as a lost lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import asyncpg
import pytest

from flowfabric.engine import Ended, Engine, State, Step, Unavailable
from flowfabric.store.transaction import Transaction
from tests.concurrency.gates import wait_until_blocked
from tests.concurrency.soundness import assert_sound
from tests.scenarios import leased, submitted
from tests.stores import PostgresTestStore, opened

pytestmark = pytest.mark.parametrize("store", ["postgres"], indirect=True)
CONFLICTS = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)
Run = Callable[[Callable[[Transaction], Coroutine[Any, Any, None]]], Awaitable[None]]


@pytest.fixture
async def other_connections(store: PostgresTestStore) -> AsyncIterator[tuple[Any, Any]]:
    """Yield two open transactions of another application."""
    connections = [await asyncpg.connect(store.url) for _ in range(2)]
    for connection in connections:
        await connection.execute("BEGIN")
    yield connections[0], connections[1]
    for connection in connections:
        await connection.close()


@pytest.fixture
async def impatient(store: PostgresTestStore) -> AsyncIterator[Engine]:
    """Yield an engine whose connections detect deadlocks immediately, so that the server aborts their transactions."""
    impatient = PostgresTestStore(f"{store.url}&deadlock_timeout=5ms")
    impatient.schema = store.schema
    async with opened(impatient) as engine:
        yield engine


async def test_lasting_conflict_is_tried_ten_times_and_then_unavailable(engine: Engine) -> None:
    store = engine._context.store

    async def tries_of(run: Run, conflict: type[Exception]) -> int:
        tries = 0

        async def always_in_conflict(tx: Transaction) -> None:
            nonlocal tries
            tries += 1
            await tx.now()
            raise conflict("forced")

        with pytest.raises(Unavailable) as exhausted:
            await run(always_in_conflict)
        assert exhausted.value.code == "retry_exhausted"
        return tries

    runs = zip((store.run, store.run_single), CONFLICTS, strict=True)
    assert {await tries for tries in [asyncio.create_task(tries_of(*run)) for run in runs]} <= {10, 11}


async def test_passing_conflict_is_invisible_and_has_one_effect(engine: Engine) -> None:
    runs = 0
    id_ = await submitted(engine)

    async def in_conflict_at_first(tx: Transaction) -> int:
        nonlocal runs
        runs += 1
        locked = await tx.executions.lock(None, [id_])
        await tx.executions.set_tags(id_, {**locked[id_].tags, f"run.number_{runs}": "x"}, await tx.now())
        if runs < 5:
            raise asyncpg.SerializationError("forced")
        return runs

    assert await engine._context.store.run(in_conflict_at_first) == 5
    assert (await engine.executions.describe(id_)).tags == {"run.number_5": "x"}


async def test_refused_operation_runs_once(engine: Engine) -> None:
    runs = 0

    async def refused(tx: Transaction) -> None:
        nonlocal runs
        runs += 1
        raise LookupError("not a conflict")

    with pytest.raises(LookupError):
        await engine._context.store.run(refused)
    assert runs == 1


async def test_worker_completes_after_losing_a_deadlock(
    store: PostgresTestStore, impatient: Engine, other_connections: tuple[Any, Any]
) -> None:
    first, last = other_connections
    lease = await leased(impatient)
    await first.execute(step_row(store), lease.execution_id, 1, "first")
    await last.execute(step_row(store), lease.execution_id, 2, "last")
    steps = [Step("first", b"1"), Step("last", b"2")]
    completing = asyncio.ensure_future(impatient.leases.complete(lease.fence, b"out", steps=steps))
    await wait_until_blocked(store, impatient, 1)
    locking = asyncio.ensure_future(last.fetch(row_lock(store), lease.execution_id))
    await wait_until_blocked(store, impatient, 2)
    # The rollback lets the worker write the first step. The worker then waits for the transaction `last`, which waits
    # for the worker.
    await first.execute("ROLLBACK")
    assert len(await locking) == 1
    await last.execute("ROLLBACK")
    assert await completing == Ended(State.COMPLETED)
    assert [step.payload for step in await impatient.executions.steps(lease.execution_id)] == [b"1", b"2"]
    await assert_sound(store)


async def test_operation_on_many_executions_finishes_after_losing_a_deadlock(
    store: PostgresTestStore, impatient: Engine, other_connections: tuple[Any, Any]
) -> None:
    first, last = other_connections
    ids = sorted([await submitted(impatient) for _ in range(3)])
    for id_ in ids:
        await impatient.operator.hold(id_)
    await first.fetch(row_lock(store), ids[1])
    await last.fetch(row_lock(store), ids[2])
    unholding = asyncio.ensure_future(impatient.operator.unhold_all())
    await wait_until_blocked(store, impatient, 1)
    locking = asyncio.ensure_future(last.fetch(row_lock(store), ids[0]))
    await wait_until_blocked(store, impatient, 2)
    await first.execute("ROLLBACK")
    assert len(await locking) == 1
    await last.execute("ROLLBACK")
    assert await unholding == 3
    await assert_sound(store)


def row_lock(store: PostgresTestStore) -> str:
    return f'SELECT id FROM "{store.schema}".execution WHERE id = $1 FOR UPDATE'


def step_row(store: PostgresTestStore) -> str:
    return (
        f'INSERT INTO "{store.schema}".step (execution_id, seq, name, status, payload, encoding, digest, attempt_index,'
        " generation, recorded_at) VALUES ($1, $2, $3, 'ok', '', 'json', '', 0, 0, now())"
    )
