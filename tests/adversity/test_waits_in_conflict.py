"""Suspends and signals in a conflict or behind a lock: they are tried again, then unavailable, and safe to repeat; a
worker never hears of a lost lease for it, and one that has lost its lease is told so at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from flowfabric.engine import Accepted, Engine, Suspended, Unavailable
from flowfabric.store.transaction import Body, Store, Transaction
from flowfabric.testing import VirtualClock
from tests.concurrency.gates import held_up
from tests.concurrency.wait_soundness import assert_waits_sound
from tests.concurrency.waits import suspended
from tests.facts import nothing_written, refused
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
    """An execution that can be suspended, and how."""
    await suspended(engine)
    lease = await leased(engine)
    return lease, lambda side: side.leases.suspend(lease.fence, ["boss"], key="once"), Suspended


async def deliver(engine: Engine) -> tuple[Any, Call, type]:
    """The same for a signal."""
    wait = await suspended(engine)
    return wait.lease, wait.signal(key="once"), Accepted


async def approve(engine: Engine) -> tuple[Any, Call, type]:
    """The same for an approval, which needs a lock from the start."""
    wait = await suspended(engine)
    return wait.lease, lambda side: side.signals.approve(wait.id, "boss", suffix="1"), Accepted


@pytest.mark.parametrize("arrange", [suspend, deliver, approve])
@pytest.mark.parametrize("code", ["40001", "40P01"], ids=["serialization", "deadlock"])
@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_what_stays_in_conflict_is_tried_ten_times_and_can_be_repeated(
    store: PostgresTestStore, engine: Engine, arrange: Any, code: str
) -> None:
    _, call, done = await arrange(engine)
    async with quarrelling(store, code), nothing_written(store):
        await refused(call(engine), "retry_exhausted", Unavailable)
        [row] = await store.query("SELECT last_value AS tries FROM ff.quarrels")
    assert row["tries"] in (10, 11), "one statement without a transaction comes before the ten with one"
    assert isinstance(await call(engine), done)
    await assert_waits_sound(store)


@pytest.mark.parametrize("arrange", [suspend, deliver])
async def test_what_waits_too_long_for_a_lock_is_unavailable_and_can_be_repeated(
    store: TestStore, engine: Engine, clock: VirtualClock, arrange: Any
) -> None:
    lease, call, done = await arrange(engine)
    async with opened(store, clock, statement_timeout="1s") as hasty:
        async with nothing_written(store), held_up(store, lease.execution_id):
            await refused(call(hasty), TOO_LONG[store.name], Unavailable)
        assert isinstance(await call(hasty), done)
    await assert_waits_sound(store)


@pytest.mark.parametrize("waitpoints", [["boss"], ["boss", "early"]], ids=["without a lock", "with a lock"])
async def test_a_lost_lease_is_told_by_the_first_try(store: TestStore, engine: Engine, waitpoints: list[str]) -> None:
    lease = await leased(engine)
    await engine.waitpoints.create(lease.fence, "early")
    await engine.operator.revoke_lease(lease.execution_id)
    counting: Any = CountingStore(engine._context.store)
    side = Engine(replace(engine._context, store=counting, batchers={}))
    async with nothing_written(store):
        await refused(side.leases.suspend(lease.fence, waitpoints), "lease_revoked")
    assert counting.tries == [1, 1], "a look, and the refusal under the lock"


class CountingStore:
    """A store that counts how often each transaction is tried."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.tries: list[int] = []

    async def run(self, body: Body[Any]) -> Any:
        return await self._store.run(self._counted(body))

    async def run_single(self, body: Body[Any]) -> Any:
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
async def quarrelling(store: PostgresTestStore, code: str) -> AsyncIterator[None]:
    """A store in which whoever writes the row of an execution loses to somebody, and that is counted."""
    trigger = "CREATE TRIGGER quarrel BEFORE UPDATE ON ff.execution FOR EACH ROW EXECUTE FUNCTION ff.quarrel()"
    await store.queries(["CREATE SEQUENCE ff.quarrels", QUARREL.format(code=code), trigger])
    try:
        yield
    finally:
        await store.queries(["DROP FUNCTION ff.quarrel CASCADE", "DROP SEQUENCE ff.quarrels"])
