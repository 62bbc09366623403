"""A stress test of the outbox with overlapping writers and concurrent readers.

Writers change the same executions through batches and single operations. On PostgreSQL some transactions stay open for
a while after their writes. Readers of several kinds follow the events live and must not miss any. A naive reader
queries `id > last` and misses events, which shows that ids alone cannot serve as a cursor.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import asyncpg

from flowfabric.core.executions.requests import AuditInfo
from flowfabric.engine import Engine, Event, FlowFabricError, Lease, Submission, Unavailable
from flowfabric.ops.operator.hold import OperatorRequest, hold, unhold
from flowfabric.store.transaction import Transaction
from tests.stores import PostgresTestStore, TestStore

Seen = tuple[UUID | None, int | None]
WHO = AuditInfo(principal="storm", reason="")
_LANE = "default"


@dataclass
class Ledger:
    """The events that one reader received, in order."""

    name: str
    seen: list[Seen] = field(default_factory=list)

    def take(self, event: Event) -> None:
        self.seen.append((event.execution_id, event.version))

    def missed(self, written: set[Seen]) -> int:
        return len(written - set(self.seen))

    def repeated(self) -> int:
        return sum(number - 1 for number in Counter(self.seen).values())

    def disorder(self) -> int:
        """Return how many events arrived after a later event of the same execution."""
        last: dict[UUID | None, int] = {}
        wrong = 0
        for id_, version in self.seen:
            wrong += (version or 0) <= last.get(id_, 0)
            last[id_] = max(version or 0, last.get(id_, 0))
        return wrong


class Writer:
    """A writer that submits executions, claims any of them, renews the lease, and completes, releases or holds them.

    Its engine records renewals as events.
    """

    def __init__(self, engine: Engine, seed: int, given_back: deque[UUID], *, lingers: bool) -> None:
        self._engine = engine
        self._chance = random.Random(seed)
        self._given_back = given_back
        self._lingers = lingers
        self.events = 0
        self.given_up = 0

    async def write(self, number: int) -> None:
        while self.events < number:
            try:
                await self._round()
            except Unavailable:
                # SQLite has one writer at a time and no fair queue, so some writers time out.
                self.given_up += 1

    async def _round(self) -> None:
        await self._engine.executions.submit_many([Submission(kind="job") for _ in range(24)])
        # Leases last longer than the test, so executions that are not released stay active.
        leases = await self._engine.leases.claim([_LANE], "storm", limit=self._chance.randint(1, 48), lease_ttl="1h")
        self.events += len(leases)
        await self._renew(leases)
        await self._end(leases)
        if self._lingers and self._chance.random() < 0.2:
            with suppress(FlowFabricError):
                await self._engine._context.store.run(self._hold_in_open_transaction)

    async def _renew(self, leases: Sequence[Lease]) -> None:
        some = [lease.fence for lease in leases if self._chance.random() < 0.2]
        self._count(await self._engine.leases.renew_many(some))

    async def _end(self, leases: Sequence[Lease]) -> None:
        several = [lease for lease in leases if self._chance.random() < 0.85]
        if several:
            self._count(await self._engine.leases.complete_many([(lease.fence, b"") for lease in several]))
        for lease in leases:
            if lease not in several:
                await self._engine.leases.release(lease.fence)
                self._given_back.append(lease.execution_id)
                self.events += 1

    def _count(self, results: Sequence[object]) -> None:
        self.events += sum(not isinstance(result, FlowFabricError) for result in results)

    async def _hold_in_open_transaction(self, tx: Transaction) -> None:
        """Hold and unhold several executions in one transaction and delay the commit.

        Meanwhile other transactions, which have larger transaction ids, change executions that this transaction has not
        reached yet.
        """
        for id_ in self._chance.sample(sorted(self._given_back), min(4, len(self._given_back))):
            with suppress(FlowFabricError):
                await hold.run(tx, self._engine.namespace, OperatorRequest(id_, WHO))
                await unhold.run(tx, self._engine.namespace, OperatorRequest(id_, WHO))
                self.events += 2
            await asyncio.sleep(self._chance.random() / 100)


async def follow(engine: Engine, ledger: Ledger) -> None:
    """Follow all events until cancelled."""
    async for event in engine.events.subscribe(start="beginning"):
        ledger.take(event)


async def follow_by_cursor(engine: Engine, ledger: Ledger, chance: random.Random) -> None:
    """Follow events with many short reads, each of which starts after the last cursor."""
    cursor = await engine.events.cursor("beginning")
    while True:
        left = chance.randint(1, 400)
        async for event in engine.events.subscribe(cursor=cursor):
            ledger.take(event)
            assert event.cursor is not None
            cursor, left = event.cursor, left - 1
            if not left:
                break


async def follow_by_name(engines: Sequence[Engine], ledger: Ledger, chance: random.Random) -> None:
    """Follow events as a named subscriber.

    Alternate between the engines, and acknowledge the events before each change of engine.
    """
    while True:
        async with chance.choice(engines).events.subscribe(name="storm", start="beginning") as events:
            left = chance.randint(1, 400)
            async for event in events:
                ledger.take(event)
                left -= 1
                if not left:
                    await events.commit()
                    break


async def follow_completions(engine: Engine, ledger: Ledger) -> None:
    """Follow only the events that end executions."""
    async for event in engine.events.subscribe(["completion"], start="beginning"):
        ledger.take(event)


async def follow_naively(store: PostgresTestStore, ledger: Ledger) -> None:
    """Poll for events whose id is above the last id read. This is the obvious approach, but it misses events."""
    last = 0
    query = f'SELECT id, execution_id, version FROM "{store.schema}".event WHERE id > $1 ORDER BY id LIMIT 500'
    connection: asyncpg.Connection[Any] = await asyncpg.connect(store.url)
    try:
        while True:
            for row in await connection.fetch(query, last):
                last = row["id"]
                ledger.seen.append((row["execution_id"], row["version"]))
            await asyncio.sleep(0.001)
    finally:
        await connection.close()


async def kill_listeners(store: PostgresTestStore, every_s: float, killed: list[int]) -> None:
    """Repeatedly terminate all listening connections of the server, and record them."""
    connection: asyncpg.Connection[Any] = await asyncpg.connect(store.url)
    try:
        while True:
            await asyncio.sleep(every_s)
            listeners = await connection.fetch(
                "SELECT pid, pg_terminate_backend(pid) AS killed FROM pg_stat_activity"
                " WHERE application_name = 'flowfabric-listener'"
            )
            killed += [row["pid"] for row in listeners if row["killed"]]
    finally:
        await connection.close()


async def read_stored_events(store: TestStore) -> tuple[set[Seen], set[Seen]]:
    """Return the keys of all stored events, and the keys of completion events."""
    rows = await store.query("SELECT execution_id, version, family FROM ff.event WHERE execution_id IS NOT NULL")
    families: dict[Seen, str] = {(UUID(str(row["execution_id"])), row["version"]): row["family"] for row in rows}
    return set(families), {seen for seen, family in families.items() if family == "completion"}
