"""Test PostgreSQL statements that run without a transaction around them, and fall back to one where they fail."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from flowfabric.core.executions.outcomes import Ended, Renewed
from flowfabric.core.executions.states import State
from flowfabric.engine import Conflict, Created, Engine, Lease, Step, Submission, Unavailable
from flowfabric.ops.executions.submit import SUBMIT
from tests.concurrency.gates import eventually
from tests.concurrency.soundness import assert_sound
from tests.expectations import refused
from tests.scenarios import submitted
from tests.stores import PostgresTestStore, opened

pytestmark = pytest.mark.parametrize("store", ["postgres"], indirect=True)

# The time after which a completion no longer waits for a locked row, and the time that a busy machine may add.
LOCK_TIMEOUT_S = 0.1
MARGIN_S = 2.0
COMPLETED = Ended(State.COMPLETED)
# A process that locks a row, says so, and then waits for its input.
HOLDER = """
import asyncio, sys
import asyncpg

async def hold(url, statement):
    connection = await asyncpg.connect(url)
    async with connection.transaction():
        await connection.execute(statement)
        print("locked", flush=True)
        sys.stdin.read()

asyncio.run(hold(*sys.argv[1:]))
"""


@contextmanager
def frozen_holder(store: PostgresTestStore, id_: UUID) -> Iterator[None]:
    """Run a process that locks the row of an execution and is then stopped, until the block ends."""
    lock = f"SELECT 1 FROM \"{store.schema}\".execution WHERE id = '{id_}' FOR UPDATE"
    command = [sys.executable, "-c", HOLDER, store.url, lock]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None, "the process was started with a pipe"
            assert process.stdout.readline() == "locked\n"
            process.send_signal(signal.SIGSTOP)
            yield
        finally:
            process.kill()


async def leases_of(engine: Engine, number: int) -> list[Lease]:
    for _ in range(number):
        await submitted(engine)
    return await engine.leases.claim(["default"], "worker", limit=number)


async def test_frozen_process_that_holds_a_row_delays_the_rest_of_the_batch_by_the_lock_timeout(
    store: PostgresTestStore, engine: Engine
) -> None:
    leases = await leases_of(engine, 20)
    held, others = leases[7], [*leases[:7], *leases[8:]]
    with frozen_holder(store, held.execution_id):
        began = time.monotonic()
        # The completions of one turn of the event loop share a batch.
        ends = [asyncio.ensure_future(engine.leases.complete(lease.fence, b"1")) for lease in leases]
        others_end = asyncio.gather(*(end for lease, end in zip(leases, ends, strict=True) if lease is not held))
        assert await others_end == [COMPLETED] * len(others)
        took_s = time.monotonic() - began
        assert not ends[7].done()
    assert LOCK_TIMEOUT_S <= took_s <= LOCK_TIMEOUT_S + MARGIN_S
    assert await ends[7] == COMPLETED
    await assert_sound(store)


async def test_complete_batches_in_opposite_order_end_without_a_deadlock(store: PostgresTestStore) -> None:
    async with opened(store) as engine, opened(store) as other, watching(store) as watcher:
        before = await deadlocks(watcher)
        for _ in range(5):
            first, middle, last = await leases_of(engine, 3)
            # Both batches lock one row and wait for the middle one. The one that gets it then waits for the other.
            async with store.locked(middle.execution_id):
                batches = [
                    asyncio.ensure_future(each.leases.complete_many([(lease.fence, b"1") for lease in order]))
                    for each, order in ((engine, [first, middle, last]), (other, [last, middle, first]))
                ]
                await eventually(partial(waits_or_done, watcher, batches))
            assert await asyncio.gather(*batches) == [[COMPLETED] * 3] * 2
        assert await deadlocks(watcher) == before
    await assert_sound(store)


async def test_minted_id_that_exists_already_is_decided_by_the_careful_path(
    store: PostgresTestStore, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    existing = await submitted(engine)
    minted = [UUID(int=existing.int + number) for number in range(3)]
    ids = iter(minted)
    monkeypatch.setattr(engine._context.ids, "mint", lambda: next(ids))
    before = SUBMIT.paths.copy()
    repeated, *created = await engine.executions.submit_many([Submission(kind="job") for _ in minted])
    assert created == [Created(id_, State.WAITING) for id_ in minted[1:]]
    assert isinstance(repeated, Conflict)
    assert (repeated.code, repeated.fields["execution_id"]) == ("idempotency_mismatch", existing)
    assert SUBMIT.paths["locked_single"] == before["locked_single"] + 1
    assert len((await engine.executions.list()).items) == 3


async def test_two_processes_that_record_steps_under_one_lease_use_different_numbers(
    store: PostgresTestStore, engine: Engine
) -> None:
    [lease] = await leases_of(engine, 1)
    async with opened(store) as other:
        for number in range(20):
            names = [f"{number} here", f"{number} there"]
            calls = [
                each.leases.checkpoint(lease.fence, [Step(name, b"1")])
                for each, name in zip((engine, other), names, strict=True)
            ]
            assert await asyncio.gather(*calls) == [1, 1]
    steps = await engine.executions.steps(lease.execution_id)
    assert [step.seq for step in steps] == list(range(1, 41))
    await assert_sound(store)


async def test_renewal_that_meets_a_shared_row_is_refused_as_busy_and_can_be_repeated(
    store: PostgresTestStore, engine: Engine
) -> None:
    [lease] = await leases_of(engine, 1)
    lock = f'SELECT 1 FROM "{store.schema}".execution WHERE id = $1 FOR SHARE'
    async with watching(store) as recorder, recorder.transaction():
        await recorder.execute(lock, lease.execution_id)
        await refused(engine.leases.renew(lease.fence), "lease_busy", Unavailable)
    assert isinstance(await engine.leases.renew(lease.fence), Renewed)


@asynccontextmanager
async def watching(store: PostgresTestStore) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(store.url)
    yield connection
    await connection.close()


async def deadlocks(watcher: asyncpg.Connection) -> int:
    query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    return int(await watcher.fetchval(query))


async def waits_or_done(watcher: asyncpg.Connection, batches: Sequence[asyncio.Future[Any]]) -> bool:
    query = "SELECT COUNT(*) FROM pg_locks WHERE NOT granted"
    return await watcher.fetchval(query) >= 2 or any(batch.done() for batch in batches)
