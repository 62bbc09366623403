"""The tables are emptied, or dropped and created again, while engines are open. Test suites do this.

After each fault, everything that is acknowledged must be claimed by a worker of its kind, and a live and a named
subscriber must receive every event that the store has.
"""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass
from uuid import UUID

from flowfabric.engine import Engine
from tests.faults.kit.readers import PATIENCE_S, missed_events, read_all, subscribed
from tests.faults.rows.row import Row, Tally, Trial
from tests.stores import TABLES, PostgresTestStore, TestStore, opened

KINDS = [f"kind-{number}" for number in range(4)]
SUBMITS = 6
WORKER = "worker-1"


async def _run(trial: Trial) -> Tally:
    store, tally, chance = trial.new_store(), Tally(), trial.random()
    async with opened(store) as engine, opened(store) as other, subscribed(engine) as received:
        for number in range(trial.faults):
            await _Round(store, engine, other, received, tally, chance).run(number)
    return tally


@dataclass
class _Round:
    store: TestStore
    engine: Engine
    other: Engine
    received: dict[str, set[UUID]]
    tally: Tally
    chance: random.Random

    async def run(self, number: int) -> None:
        await self._work(self.engine)
        how = [self._empty, self._empty_with_store, self._recreate][number % 3]
        await how()
        self.tally.injected += 1
        began = time.monotonic()
        # The other engine uses some kinds first, so counted ids of routes would be given to other kinds.
        await self._submit(self.other, self.chance.choice(KINDS))
        await self._work(self.engine)
        self.tally.recoveries_s.append(time.monotonic() - began)
        await self._check_events()

    async def _work(self, engine: Engine) -> None:
        """Submit executions of random kinds, describe them, and let a worker of each kind complete them."""
        kinds = [self.chance.choice(KINDS) for _ in range(SUBMITS)]
        submitted = {await self._submit(engine, kind): kind for kind in kinds}
        await read_all(self.engine, submitted, self.tally)
        remaining, deadline = set(submitted), time.monotonic() + PATIENCE_S
        while remaining and time.monotonic() < deadline:
            for kind in KINDS:
                for lease in await engine.leases.claim(["default"], WORKER, kinds=[kind], limit=50):
                    if json.loads(lease.payload) != kind:
                        self.tally.wrong.append(f"the worker of {kind} received {lease.payload!r}")
                    await engine.leases.complete(lease.fence)
                    remaining.discard(lease.execution_id)
        self.tally.stuck += [f"{submitted[id_]} {id_} was acknowledged and never claimed" for id_ in remaining]

    async def _submit(self, engine: Engine, kind: str) -> UUID:
        self.tally.executions += 1
        return (await engine.executions.submit(kind, json.dumps(kind).encode())).id

    async def _check_events(self) -> None:
        rows = await self.store.query("SELECT execution_id FROM ff.event WHERE family = 'completion'")
        expected = {UUID(str(row["execution_id"])) for row in rows}
        self.tally.events += len(expected)
        self.tally.lost += await missed_events(self.received, expected, "of the emptied store")

    async def _empty(self) -> None:
        """Remove all rows but the one of the store, and let the ids of routes start again."""
        await self.store.queries([f"DELETE FROM ff.{table}" for table in TABLES])
        if self.store.name == "sqlite":
            await self.store.query("DELETE FROM sqlite_sequence WHERE name = 'ff_route'")
        else:
            await self.store.query("ALTER TABLE ff.route ALTER COLUMN id RESTART")

    async def _empty_with_store(self) -> None:
        """Remove all rows, and let all ids start again."""
        await self._empty()
        await self.store.query("DELETE FROM ff.store")
        if self.store.name == "sqlite":
            await self.store.query("DELETE FROM sqlite_sequence")

    async def _recreate(self) -> None:
        """Drop all tables, and let another process create them."""
        if isinstance(self.store, PostgresTestStore):
            await self.store.query(f'DROP SCHEMA "{self.store.schema}" CASCADE')
        else:
            found = await self.store.query("SELECT name FROM sqlite_schema WHERE type = 'table' AND name GLOB 'ff_*'")
            await self.store.queries([f"DROP TABLE {row['name']}" for row in found])
        async with opened(self.store):
            pass


ROWS = (
    Row(
        "tables emptied under an engine",
        "All rows are removed, or all tables are dropped and created again, while engines are open",
        _run,
        minimum=60,
        short_minimum=3,
    ),
)
