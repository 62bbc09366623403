"""The engine retries suspends and signals after a conflict. If the conflict lasts or a lock is held too long, these
calls raise `Unavailable`.

A conflict is never reported as a lost lease, and a lost lease is reported immediately.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from flowfabric.engine import Accepted, Engine, Suspended, Unavailable
from flowfabric.store.ports import Body, Store
from flowfabric.store.transaction import Transaction
from flowfabric.testing import VirtualClock
from tests.concurrency.gates import block_writes
from tests.concurrency.wait_soundness import assert_waits_sound
from tests.concurrency.waits import suspended
from tests.expectations import nothing_written, refused
from tests.scenarios import leased
from tests.stores import PostgresTestStore, TestStore, opened

Call = Callable[[Engine], Awaitable[Any]]
TOO_LONG = {"sqlite": "storage_busy", "postgres": "statement_timeout"}
QUARREL = """
    CREATE FUNCTION ff.quarrel() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM nextval('ff.quarrels');
        RAISE EXCEPTION 'forced' USING ERRCODE = '{code}';
    END
    $$
"""


async def suspend(engine: Engine) -> tuple[Any, Call, type]:
    """Return a lease, the call that suspends its execution, and the type of the expected result."""
    await suspended(engine)
    lease = await leased(engine)
    return lease, lambda side: side.leases.suspend(lease.fence, ["boss"], key="once"), Suspended


async def deliver(engine: Engine) -> tuple[Any, Call, type]:
    """Return the lease of a suspended execution, the call that delivers its signal, and the type of the expected
    result.
    """
    wait = await suspended(engine)
    return wait.lease, wait.signal(key="once"), Accepted


async def approve(engine: Engine) -> tuple[Any, Call, type]:
    """Return the lease of a suspended execution, the call that approves, and the result type.

    An approval always takes a lock.
    """
    wait = await suspended(engine)
    return wait.lease, lambda side: side.signals.approve(wait.id, "boss", suffix="1"), Accepted


@pytest.mark.parametrize("arrange", [suspend, deliver, approve])
@pytest.mark.parametrize("code", ["40001", "40P01"], ids=["serialization", "deadlock"])
@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_lasting_conflict_is_tried_ten_times_and_can_be_retried(
    store: PostgresTestStore, engine: Engine, arrange: Any, code: str
) -> None:
    _, call, done = await arrange(engine)
    async with inject_conflicts(store, code), nothing_written(store):
        await refused(call(engine), "retry_exhausted", Unavailable)
        [row] = await store.query("SELECT last_value AS tries FROM ff.quarrels")
    assert row["tries"] in (10, 11), "ten tries in a transaction, and one before them without a transaction"
    assert isinstance(await call(engine), done)
    await assert_waits_sound(store)


@pytest.mark.parametrize("arrange", [suspend, deliver])
async def test_long_lock_wait_is_unavailable_and_can_be_retried(
    store: TestStore, engine: Engine, clock: VirtualClock, arrange: Any
) -> None:
    lease, call, done = await arrange(engine)
    async with opened(store, clock, statement_timeout="1s") as hasty:
        async with nothing_written(store), block_writes(store, lease.execution_id):
            await refused(call(hasty), TOO_LONG[store.name], Unavailable)
        assert isinstance(await call(hasty), done)
    await assert_waits_sound(store)


@pytest.mark.parametrize("waitpoints", [["boss"], ["boss", "early"]], ids=["without a lock", "with a lock"])
async def test_lost_lease_is_reported_by_the_first_try(store: TestStore, engine: Engine, waitpoints: list[str]) -> None:
    lease = await leased(engine)
    await engine.waitpoints.create(lease.fence, "early")
    await engine.operator.revoke_lease(lease.execution_id)
    counting: Any = CountingStore(engine._context.store)
    side = Engine(replace(engine._context, store=counting, batchers={}))
    async with nothing_written(store):
        await refused(side.leases.suspend(lease.fence, waitpoints), "lease_revoked")
    assert counting.tries == [1], "one transaction was tried, which refused the call under the lock"


class CountingStore:
    """A store that counts how often it tries each transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.tries: list[int] = []

    async def run(self, body: Body[Any], *, is_urgent: bool = False) -> Any:
        return await self._store.run(self._counted(body))

    async def run_single(self, body: Body[Any], *, is_urgent: bool = False) -> Any:
        return await self._store.run_single(self._counted(body))

    def _counted(self, body: Body[Any]) -> Body[Any]:
        place = len(self.tries)
        self.tries.append(0)

        async def counted(tx: Transaction) -> Any:
            self.tries[place] += 1
            return await body(tx)

        return counted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@asynccontextmanager
async def inject_conflicts(store: PostgresTestStore, code: str) -> AsyncIterator[None]:
    """Make every update of an execution row fail with this error code during the block, and count the updates."""
    trigger = "CREATE TRIGGER quarrel BEFORE UPDATE ON ff.execution FOR EACH ROW EXECUTE FUNCTION ff.quarrel()"
    await store.queries(["CREATE SEQUENCE ff.quarrels", QUARREL.format(code=code), trigger])
    try:
        yield
    finally:
        await store.queries(["DROP FUNCTION ff.quarrel CASCADE", "DROP SEQUENCE ff.quarrels"])
