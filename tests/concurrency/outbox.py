"""A storm over the outbox: writers whose transactions overlap and commit late, and readers that must not miss anything.

Writers contend for the same executions by batches and by single operations; on PostgreSQL some transactions stay open
for a while when they have written. Readers of several kinds follow them live. Beside them a naive reader asks for
`id > last`, which is what the position is there for.
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

from flowfabric.core.requests import Command
from flowfabric.engine import Engine, Event, FlowFabricError, Lease, Submission, Unavailable
from flowfabric.ops.hold import hold, unhold
from flowfabric.store.transaction import Transaction
from tests.stores import PostgresTestStore, TestStore

Seen = tuple[UUID | None, int | None]
WHO = Command(principal="storm", reason="")
_LANE = "default"


@dataclass
class Ledger:
    """What one reader has seen, in its order."""

    name: str
    seen: list[Seen] = field(default_factory=list)

    def take(self, event: Event) -> None:
        self.seen.append((event.execution_id, event.version))

    def missed(self, written: set[Seen]) -> int:
        return len(written - set(self.seen))

    def doubled(self) -> int:
        return sum(number - 1 for number in Counter(self.seen).values())

    def disorder(self) -> int:
        """How often an event came after a later one of its execution."""
        last: dict[UUID | None, int] = {}
        wrong = 0
        for id_, version in self.seen:
            wrong += (version or 0) <= last.get(id_, 0)
            last[id_] = max(version or 0, last.get(id_, 0))
        return wrong


class Writer:
    """One writer: it submits, claims what anybody submitted, renews it, and ends it, gives it back, or holds it. Its
    engine notes renewals."""

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
                # A file has one writer at a time, and does not say whose turn is next: some wait for too long.
                self.given_up += 1

    async def _round(self) -> None:
        await self._engine.executions.submit_many([Submission(kind="job") for _ in range(24)])
        # Leases are for as long as the storm: what is not given back stays active.
        leases = await self._engine.leases.claim([_LANE], "storm", limit=self._chance.randint(1, 48), lease_ttl="1h")
        self.events += len(leases)
        await self._renew(leases)
        await self._end(leases)
        if self._lingers and self._chance.random() < 0.2:
            with suppress(FlowFabricError):
                await self._engine._context.store.run(self._linger)

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

    def _count(self, answers: Sequence[object]) -> None:
        self.events += sum(not isinstance(answer, FlowFabricError) for answer in answers)

    async def _linger(self, tx: Transaction) -> None:
        """Holds and unholds some work in one transaction, one after another, and is in no hurry to commit. What others
        have done meanwhile to the later ones has larger transaction ids than this one."""
        for id_ in self._chance.sample(sorted(self._given_back), min(4, len(self._given_back))):
            with suppress(FlowFabricError):
                await hold(tx, self._engine.namespace, id_, WHO)
                await unhold(tx, self._engine.namespace, id_, WHO)
                self.events += 2
            await asyncio.sleep(self._chance.random() / 100)


async def follow(engine: Engine, ledger: Ledger) -> None:
    """Reads all events, for ever."""
    async for event in engine.events.subscribe(start="beginning"):
        ledger.take(event)


async def follow_by_cursor(engine: Engine, ledger: Ledger, chance: random.Random) -> None:
    """Begins again and again after the last cursor."""
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
    """Reads under a name, by one engine after the other, and says what is done before it goes."""
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
    """Reads only how executions end."""
    async for event in engine.events.subscribe(["completion"], start="beginning"):
        ledger.take(event)


async def follow_naively(store: PostgresTestStore, ledger: Ledger) -> None:
    """What everybody writes first: the ids are numbers that grow, so ask for those above the last."""
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
    """Ends all listening connections of the server, again and again, and notes which."""
    connection: asyncpg.Connection[Any] = await asyncpg.connect(store.url)
    try:
        while True:
            await asyncio.sleep(every_s)
            found = await connection.fetch(
                "SELECT pid, pg_terminate_backend(pid) AS killed FROM pg_stat_activity"
                " WHERE application_name = 'flowfabric-listener'"
            )
            killed += [row["pid"] for row in found if row["killed"]]
    finally:
        await connection.close()


async def written(store: TestStore) -> tuple[set[Seen], set[Seen]]:
    """All events in the table, and those that tell of an end."""
    rows = await store.query("SELECT execution_id, version, family FROM ff.event WHERE execution_id IS NOT NULL")
    found: dict[Seen, str] = {(UUID(str(row["execution_id"])), row["version"]): row["family"] for row in rows}
    return set(found), {seen for seen, family in found.items() if family == "completion"}
