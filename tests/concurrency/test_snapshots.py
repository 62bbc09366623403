"""Test that a PostgreSQL statement writes nothing if its lease was lost after its snapshot was taken.

The tests run the real statements with one addition. Each statement waits for an advisory lock after its snapshot was
taken and before it locks a row. In that window another engine takes the lease away and commits. A second test removes
the row lock from the statement. The statement then overwrites the row of the new owner, which proves that the lock is
necessary.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from flowfabric.backends.postgres.hot_path import PostgresTransaction
from flowfabric.backends.postgres.session import PostgresSession
from flowfabric.core.executions.records import WorkerId
from flowfabric.core.executions.requests import Checkpoint, Claim, Completion, Progress
from flowfabric.engine import Engine, Fence, Lease, Step
from flowfabric.ops.leases.checkpoint import record_steps_if_owned
from flowfabric.ops.leases.complete import complete_if_owned
from flowfabric.ops.leases.renew import progress_if_owned, renew_if_owned
from flowfabric.store.statements import Dialect, Statement, load_statements
from flowfabric.store.transaction import Transaction
from flowfabric.testing import VirtualClock
from tests.concurrency.gates import eventually
from tests.concurrency.soundness import assert_sound
from tests.scenarios import leased, submitted
from tests.stores import PostgresTestStore, opened

pytestmark = pytest.mark.parametrize("store", ["postgres"], indirect=True)

NAMESPACE = "default"
ROW_LOCK = re.compile(r"\bFOR (?:NO KEY UPDATE|SHARE)\b[\w ]*")
CLOCK = re.compile(r"(SELECT COALESCE\(\$\d+, clock_timestamp\(\)\) AS now[^\n]*)")
ROUTES = re.compile(r"(FROM \"\w+\"\.route AS r\b)")

HotWrite = Callable[[Fence, Transaction], Awaitable[Any]]
Edit = Callable[[str], str]


async def recorded(fence: Fence, tx: Transaction) -> Any:
    return await record_steps_if_owned(tx, NAMESPACE, [Checkpoint(fence=fence, steps=(Step("late", b"1"),))])


HOT_WRITES: dict[str, HotWrite] = {
    "renew_if_owned": lambda fence, tx: renew_if_owned(tx, NAMESPACE, [fence]),
    "renew_noted_if_owned": lambda fence, tx: renew_if_owned(tx, NAMESPACE, [fence], with_events=True),
    "progress_if_owned": lambda fence, tx: progress_if_owned(
        tx, NAMESPACE, [Progress(fence=fence, percent=50, message="late")]
    ),
    "complete_if_owned": lambda fence, tx: complete_if_owned(
        tx, NAMESPACE, [Completion(fence=fence, result=b"late", encoding="json")]
    ),
    "record_steps_if_owned": recorded,
}
# The variant that runs without a transaction. Its guard is in the UPDATE, and it takes no lock before.
HOT_WRITES["complete_single_if_owned"] = HOT_WRITES["complete_if_owned"]
LOCKING = [name for name in HOT_WRITES if name != "complete_single_if_owned"]


async def revoked(engine: Engine, lease: Lease, clock: VirtualClock) -> None:
    await engine.operator.revoke_lease(lease.execution_id)


async def taken_over(engine: Engine, lease: Lease, clock: VirtualClock) -> None:
    await engine.operator.revoke_lease(lease.execution_id)
    await engine.leases.claim_execution(lease.execution_id, "another")


async def cancelled(engine: Engine, lease: Lease, clock: VirtualClock) -> None:
    await engine.operator.cancel(lease.execution_id)


async def replayed(engine: Engine, lease: Lease, clock: VirtualClock) -> None:
    await engine.operator.cancel(lease.execution_id)
    await engine.operator.replay(lease.execution_id)
    await engine.leases.claim_execution(lease.execution_id, "another")


async def expired(engine: Engine, lease: Lease, clock: VirtualClock) -> None:
    clock.advance("31s")
    await engine.reconcilers.tick()


# The case `expired` advances the clock permanently, so it is the last one.
LOSSES = (revoked, taken_over, cancelled, replayed, expired)


@pytest.fixture
def later() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def other(store: PostgresTestStore, engine: Engine, later: VirtualClock) -> AsyncIterator[Engine]:
    """The engine that takes leases away, with its own clock."""
    async with opened(store, later) as other:
        yield other


@pytest.mark.parametrize("write", HOT_WRITES)
async def test_zombie_writes_nothing_if_its_lease_is_lost_between_snapshot_and_lock(
    store: PostgresTestStore, engine: Engine, other: Engine, later: VirtualClock, write: str
) -> None:
    for loss in LOSSES:
        lease = await leased(engine)
        async with late_statement(store, write) as late:
            result = await late.run_overtaken(
                partial(HOT_WRITES[write], lease.fence), partial(loss, other, lease, later)
            )
        assert not result, loss.__name__
        assert await engine.executions.steps(lease.execution_id) == [], loss.__name__
        execution = await engine.executions.describe(lease.execution_id)
        assert execution.progress_percent is None, loss.__name__
        assert execution.state != "completed", loss.__name__
    await assert_sound(store)


@pytest.mark.parametrize("write", LOCKING)
async def test_guard_without_a_lock_overwrites_the_new_owner(
    store: PostgresTestStore, engine: Engine, later: VirtualClock, write: str
) -> None:
    lease = await leased(engine)
    async with late_statement(store, write, lambda text: ROW_LOCK.sub("", text)) as mutant:
        result = await mutant.run_overtaken(
            partial(HOT_WRITES[write], lease.fence), partial(taken_over, engine, lease, later)
        )
    assert set(result) == {lease.execution_id}


async def test_update_without_a_guard_overwrites_the_new_owner(
    store: PostgresTestStore, engine: Engine, later: VirtualClock
) -> None:
    def edit(text: str) -> str:
        return text.replace("AND e.epoch = owned.epoch", "").replace("AND e.lease_id = owned.lease_id", "")

    lease, write = await leased(engine), "complete_single_if_owned"
    async with late_statement(store, write, edit) as mutant:
        result = await mutant.run_overtaken(
            partial(HOT_WRITES[write], lease.fence), partial(taken_over, engine, lease, later)
        )
    assert set(result) == {lease.execution_id}


async def test_read_only_guard_lets_a_zombies_step_commit_after_the_revoke(
    store: PostgresTestStore, engine: Engine, later: VirtualClock
) -> None:
    lease = await leased(engine)
    async with late_statement(store, "record_steps_if_owned", lambda text: ROW_LOCK.sub("", text)) as mutant:
        await mutant.run_overtaken(partial(recorded, lease.fence), partial(revoked, engine, lease, later))
    assert await store.query("SELECT name FROM ff.step") == [{"name": "late"}]


async def test_claim_skips_work_claimed_between_its_snapshot_and_its_lock(
    store: PostgresTestStore, engine: Engine
) -> None:
    id_ = await submitted(engine)
    async with late_statement(store, "claim_waiting") as late:
        claim = await late.run_overtaken(claimed, lambda: engine.leases.claim_execution(id_, "faster"))
    assert claim.leases == ()
    # The claim's snapshot had a row, but another worker took it first. The caller must therefore claim again
    # immediately.
    assert claim.is_incomplete
    await assert_sound(store)


async def test_without_lock_and_position_two_claims_take_the_same_execution(
    store: PostgresTestStore, engine: Engine
) -> None:
    def edit(text: str) -> str:
        by_id = text.replace("e.ctid = head.ctid", "e.id = head.id").replace("found.ctid,", "found.ctid, found.id,")
        return ROW_LOCK.sub("", by_id)

    id_ = await submitted(engine)
    async with late_statement(store, "claim_waiting", edit) as mutant:
        claim = await mutant.run_overtaken(claimed, lambda: engine.leases.claim_execution(id_, "faster"))
    assert [lease.execution_id for lease in claim.leases] == [id_]


async def test_claim_leaves_a_row_that_changed_before_its_lock_and_reports_it(
    store: PostgresTestStore, engine: Engine
) -> None:
    ids = {await submitted(engine), await submitted(engine)}
    changed_id = min(ids)
    async with late_statement(store, "claim_waiting") as late:
        claim = await late.run_overtaken(claimed, lambda: engine.operator.change_priority(changed_id, 5))
    assert {lease.execution_id for lease in claim.leases} == ids - {changed_id}
    assert claim.is_incomplete
    assert [lease.execution_id for lease in await engine.leases.claim(["default"], "next", limit=9)] == [changed_id]
    await assert_sound(store)


async def claimed(tx: Transaction) -> Any:
    claim = Claim(
        lanes=("default",), worker=WorkerId("slow", "slow"), capabilities=(), limit=9, lease_ttl=None, kinds=None
    )
    return await tx.claim(NAMESPACE, claim, UUID(int=7).bytes * 9)


class LateStatement:
    """A statement on its own connection that stops between its snapshot and its first lock."""

    def __init__(self, store: PostgresTestStore, connection: Any, gate: Any, key: int, statements: Any) -> None:
        self._gate = gate
        self._key = key
        self._clock = VirtualClock()
        session = PostgresSession(connection, statements, store.schema, self._clock.now)
        self._tx = PostgresTransaction(session)

    async def run_overtaken(
        self, write: Callable[[Transaction], Awaitable[Any]], meanwhile: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Start the write, commit the change `meanwhile` between its snapshot and its first lock, and return its
        result.
        """
        slow = asyncio.ensure_future(write(self._tx))
        await eventually(self._stopped)
        await meanwhile()
        await self._gate.execute("SELECT pg_advisory_unlock($1)", self._key)
        return await slow

    async def _stopped(self) -> bool:
        waiting = "SELECT COUNT(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid::BIGINT = $1"
        return bool(await self._gate.fetchval(waiting, self._key))


@asynccontextmanager
async def late_statement(
    store: PostgresTestStore, name: str, edit: Edit = lambda text: text
) -> AsyncIterator[LateStatement]:
    """Yield the named statement, changed by `edit`, so that it stops between its snapshot and its first lock."""
    key = secrets.randbits(31)
    connection, gate = await asyncpg.connect(store.url), await asyncpg.connect(store.url)
    try:
        await gate.execute("SELECT pg_advisory_lock($1)", key)
        yield LateStatement(store, connection, gate, key, with_gate(store, name, key, edit))
    finally:
        await connection.close()
        await gate.close()


def with_gate(store: PostgresTestStore, name: str, key: int, edit: Edit) -> Mapping[str, Statement]:
    statements = load_statements(
        Dialect(table_prefix=f'"{store.schema}".', numbered=True), "flowfabric.backends.postgres"
    )
    [part] = statements[name].parts
    if name == "claim_waiting":
        text, times = ROUTES.subn(rf"\1 CROSS JOIN pg_advisory_xact_lock({key})", part.text)
    else:
        text, times = CLOCK.subn(rf"\1 FROM pg_advisory_xact_lock({key})", part.text)
    assert times == 1, "the statement is written differently now"
    statement = Statement(name, (replace(part, text=edit(text)),))
    return {name: statement, name.replace("_single", ""): statement}
