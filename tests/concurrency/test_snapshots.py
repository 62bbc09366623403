"""A hot statement of PostgreSQL whose snapshot is older than the loss of its lease writes nothing.

The statements that the engine ships are run with one addition: they wait for an advisory lock after their snapshot was
taken and before any row is locked. In that window the lease is lost, for real and committed. That the lock in the
guard is what makes the difference is shown by taking it out: then the very same statement writes over the new owner.
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

from flowfabric.backends.postgres.hot import PostgresHotStatements
from flowfabric.backends.postgres.session import PostgresSession
from flowfabric.core.records import WorkerId
from flowfabric.core.requests import Checkpoint, Claim, Completion, Progress
from flowfabric.engine import Engine, Fence, Lease, Step
from flowfabric.sqlstore.statements import Dialect, Statement, load
from flowfabric.store.news import News
from flowfabric.testing import VirtualClock
from tests.concurrency.gates import eventually
from tests.concurrency.soundness import assert_sound
from tests.scenarios import leased, submitted
from tests.stores import PostgresTestStore, opened

pytestmark = pytest.mark.parametrize("store", ["postgres"], indirect=True)

NAMESPACE = "default"
ROW_LOCK = re.compile(r"\bFOR NO KEY UPDATE\b[\w ]*")
CLOCK = re.compile(r"(SELECT COALESCE\(\$\d+, clock_timestamp\(\)\) AS now)")
ROUTES = re.compile(r"(FROM \"\w+\"\.route AS r\b)")
COUNTING = re.compile(r"UPDATE (\"\w+\"\.execution AS e)\s+SET step_seq = .*?RETURNING (.*?)\n\)", re.DOTALL)

HotWrite = Callable[[Fence, PostgresHotStatements], Awaitable[Any]]
Edit = Callable[[str], str]


async def recorded(fence: Fence, hot: PostgresHotStatements) -> Any:
    return await hot.record_steps_if_owned(NAMESPACE, [Checkpoint(fence=fence, steps=(Step("late", b"1"),))])


HOT_WRITES: dict[str, HotWrite] = {
    "renew_if_owned": lambda fence, hot: hot.renew_if_owned(NAMESPACE, [fence]),
    "renew_noted_if_owned": lambda fence, hot: hot.renew_if_owned(NAMESPACE, [fence], noted=True),
    "progress_if_owned": lambda fence, hot: hot.progress_if_owned(
        NAMESPACE, [Progress(fence=fence, percent=50, message="late")]
    ),
    "complete_if_owned": lambda fence, hot: hot.complete_if_owned(
        NAMESPACE, [Completion(fence=fence, result=b"late", encoding="json")]
    ),
    "record_steps_if_owned": recorded,
}


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


# The clock moves on for good when leases expire, so that this loss comes last.
LOSSES = (revoked, taken_over, cancelled, replayed, expired)


@pytest.fixture
def later() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def other(store: PostgresTestStore, engine: Engine, later: VirtualClock) -> AsyncIterator[Engine]:
    """The engine by which leases are lost, with a clock of its own."""
    async with opened(store, later) as other:
        yield other


@pytest.mark.parametrize("write", HOT_WRITES)
async def test_a_zombie_writes_nothing_when_its_lease_is_lost_between_its_snapshot_and_its_lock(
    store: PostgresTestStore, engine: Engine, other: Engine, later: VirtualClock, write: str
) -> None:
    for loss in LOSSES:
        lease = await leased(engine)
        async with late_statement(store, write) as late:
            answer = await late.overtaken(partial(HOT_WRITES[write], lease.fence), partial(loss, other, lease, later))
        assert not answer, loss.__name__
        assert await engine.executions.steps(lease.execution_id) == [], loss.__name__
        found = await engine.executions.describe(lease.execution_id)
        assert found.progress_percent is None, loss.__name__
        assert found.state != "completed", loss.__name__
    await assert_sound(store)


@pytest.mark.parametrize("write", HOT_WRITES)
async def test_without_the_lock_in_its_guard_the_same_statement_writes_over_the_new_owner(
    store: PostgresTestStore, engine: Engine, later: VirtualClock, write: str
) -> None:
    lease = await leased(engine)
    async with late_statement(store, write, lambda text: ROW_LOCK.sub("", text)) as mutant:
        answer = await mutant.overtaken(
            partial(HOT_WRITES[write], lease.fence), partial(taken_over, engine, lease, later)
        )
    assert set(answer) == {lease.execution_id}


async def test_with_a_guard_that_only_reads_the_row_a_zombies_step_commits_after_the_revoke(
    store: PostgresTestStore, engine: Engine, later: VirtualClock
) -> None:
    lease = await leased(engine)
    async with late_statement(store, "record_steps_if_owned", only_reading) as mutant:
        await mutant.overtaken(partial(recorded, lease.fence), partial(revoked, engine, lease, later))
    assert await store.query("SELECT name FROM ff.step") == [{"name": "late"}]


async def test_a_claim_takes_nothing_that_was_claimed_between_its_snapshot_and_its_lock(
    store: PostgresTestStore, engine: Engine
) -> None:
    id_ = await submitted(engine)
    async with late_statement(store, "claim_waiting") as late:
        found = await late.overtaken(claimed, lambda: engine.leases.claim_execution(id_, "faster"))
    assert found.leases == ()
    # What it saw waiting was gone when it came to lock it, so the caller looks again at once.
    assert found.all_locked
    await assert_sound(store)


async def test_without_the_lock_two_claims_take_the_same_execution(store: PostgresTestStore, engine: Engine) -> None:
    id_ = await submitted(engine)
    async with late_statement(store, "claim_waiting", lambda text: ROW_LOCK.sub("", text)) as mutant:
        found = await mutant.overtaken(claimed, lambda: engine.leases.claim_execution(id_, "faster"))
    assert [lease.execution_id for lease in found.leases] == [id_]


async def claimed(hot: PostgresHotStatements) -> Any:
    claim = Claim(
        lanes=("default",), worker=WorkerId("slow", "slow"), capabilities=(), limit=1, lease_ttl=None, kinds=None
    )  # fmt: skip
    return await hot.claim(NAMESPACE, claim, UUID(int=7).bytes)


def only_reading(text: str) -> str:
    """The statement with its lock gone and its update of the execution turned into a plain read."""
    unlocked = ROW_LOCK.sub("", text)
    changed, times = COUNTING.subn(r"SELECT \2 FROM \1 JOIN owned ON owned.id = e.id\n)", unlocked)
    assert times == 1, "the statement is written differently now"
    return changed


class LateStatement:
    """A hot statement on a connection of its own that stops between its snapshot and its first lock."""

    def __init__(self, store: PostgresTestStore, connection: Any, gate: Any, key: int, statements: Any) -> None:
        self._gate = gate
        self._key = key
        self._clock = VirtualClock()
        session = PostgresSession(connection, statements, store.schema, self._clock.now)
        self._hot = PostgresHotStatements(session, News())

    async def overtaken(
        self, write: Callable[[PostgresHotStatements], Awaitable[Any]], meanwhile: Callable[[], Awaitable[Any]]
    ) -> Any:
        """What the write answers when something else happens, and is committed, in the window."""
        slow = asyncio.ensure_future(write(self._hot))
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
    """The shipped statement of that name, made to stop in the window, and edited if a mutant is wanted."""
    key = secrets.randbits(31)
    connection, gate = await asyncpg.connect(store.url), await asyncpg.connect(store.url)
    try:
        await gate.execute("SELECT pg_advisory_lock($1)", key)
        yield LateStatement(store, connection, gate, key, with_gate(store, name, key, edit))
    finally:
        await connection.close()
        await gate.close()


def with_gate(store: PostgresTestStore, name: str, key: int, edit: Edit) -> Mapping[str, Statement]:
    statements = load(Dialect(table_prefix=f'"{store.schema}".', numbered=True), "flowfabric.backends.postgres")
    [part] = statements[name].parts
    if name == "claim_waiting":
        text, times = ROUTES.subn(rf"\1 CROSS JOIN pg_advisory_xact_lock({key})", part.text)
    else:
        text, times = CLOCK.subn(rf"\1 FROM pg_advisory_xact_lock({key})", part.text)
    assert times == 1, "the statement is written differently now"
    return {name: Statement(name, (replace(part, text=edit(text)),))}
