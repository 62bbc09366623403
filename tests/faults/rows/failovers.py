"""A PostgreSQL primary is killed, and an asynchronous standby that lacks the last transactions takes over.

What committed after the standby stopped receiving is lost. That is not promised, and counted separately. Before the
failover, in each round:

- a kind is used for the first time in the lost part, so a process knows a route that the new primary does not have
- a live and a named subscriber read events of the lost part, so their positions are ahead of the new primary
- an execution is claimed in the lost part, so the new primary gives out the same epoch again

After it, everything that is acknowledged must be claimed by a worker of its kind, and both subscribers must receive
every event that the new primary has.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from flowfabric.engine import Engine, Lease, Unavailable
from tests.faults.kit.readers import PATIENCE_S, missed_events, read_all, subscribed
from tests.faults.kit.replication import Cluster, replicated
from tests.faults.rows.row import Row, Tally, Trial
from tests.stores import PostgresTestStore, opened

SUBMITS = 4
WORKER = "worker-1"


@dataclass
class Failovers:
    """The counts of several failovers."""

    tally: Tally = field(default_factory=Tally)
    acknowledged_before: int = 0
    lost_by_failover: int = 0


async def run_failovers(rounds: int) -> Failovers:
    """Fail over `rounds` times under one engine, and return the counts."""
    report = Failovers()
    async with replicated() as cluster:
        store = PostgresTestStore(cluster.dsn)
        late = PostgresTestStore(cluster.late_dsn)
        late.schema = store.schema
        async with opened(store, retry_for=20) as engine, opened(late) as other, subscribed(other) as received:
            for number in range(rounds):
                await _Round(cluster, store, engine, received, report, number).run()
    return report


@dataclass
class _Round:
    cluster: Cluster
    store: PostgresTestStore
    engine: Engine
    received: dict[str, set[UUID]]
    report: Failovers
    number: int

    @property
    def tally(self) -> Tally:
        return self.report.tally

    async def run(self) -> None:
        await self.cluster.add_standby()
        await self._submit("shared")
        await self.cluster.catch_up()
        await self.cluster.lag()
        [early] = await self.engine.leases.claim(["default"], WORKER, kinds=["shared"])
        lost = await self._work("mail", f"new-{self.number}")
        await self._receive(set(lost), "before the failover")
        began = time.monotonic()
        await self.cluster.fail_over()
        self.tally.injected += 1
        kinds = [f"rival-{self.number}", f"new-{self.number}", "mail"]
        submitted = await self._submit_all(kinds)
        self.tally.recoveries_s.append(time.monotonic() - began)
        self.tally.executions += len(submitted) + 1
        if self.number % 2:
            self.cluster.repoint()
        await read_all(self.engine, submitted, self.tally)
        await self._complete(kinds, submitted)
        await self._claim_again(early)
        # The subscribers come late in every other round, when the new primary has used their numbers again.
        self.cluster.repoint()
        await self._check_events()
        await self._count_lost(lost)

    async def _work(self, *kinds: str) -> list[UUID]:
        """Submit and complete executions on the old primary, and return their ids."""
        ids = await self._submit_all(kinds)
        self.report.acknowledged_before += len(ids)
        await self._complete(kinds, ids)
        return list(ids)

    async def _submit_all(self, kinds: Sequence[str]) -> dict[UUID, str]:
        return {await self._submit(kind): kind for kind in kinds for _ in range(SUBMITS)}

    async def _submit(self, kind: str) -> UUID:
        """Submit one execution until it is acknowledged, and return its id."""
        id_ = uuid4()
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                await self.engine.executions.submit(kind, json.dumps([kind, str(id_)]).encode(), id=id_)
            except Unavailable as error:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no submit was acknowledged for {PATIENCE_S:g} s") from error
                await asyncio.sleep(0.05)
            else:
                return id_

    async def _complete(self, kinds: Sequence[str], submitted: dict[UUID, str]) -> None:
        """Claim and complete by kind until all submitted executions have ended."""
        remaining, deadline = set(submitted), time.monotonic() + PATIENCE_S
        while remaining and time.monotonic() < deadline:
            for kind in kinds:
                for lease in await self._claim(kind):
                    await self._complete_one(kind, lease)
                    remaining.discard(lease.execution_id)
            await asyncio.sleep(0.01)
        self.tally.stuck += [f"{submitted[id_]} {id_} was acknowledged and never claimed" for id_ in remaining]

    async def _claim(self, kind: str) -> list[Lease]:
        try:
            return await self.engine.leases.claim(["default"], WORKER, kinds=[kind], limit=50)
        except Unavailable:
            return []

    async def _complete_one(self, kind: str, lease: Lease) -> None:
        if json.loads(lease.payload) != [kind, str(lease.execution_id)]:
            self.tally.wrong.append(f"the worker of {kind} received {lease.payload!r}")
        await self.engine.leases.complete(lease.fence)

    async def _claim_again(self, early: Lease) -> None:
        """Repeat the claim of the lost part. The number for other systems must be higher than before."""
        for late in await self._claim("shared"):
            if late.execution_id == early.execution_id and late.ordered_epoch <= early.ordered_epoch:
                self.tally.wrong.append(f"fence {late.ordered_epoch} was given out after {early.ordered_epoch}")
            await self.engine.leases.complete(late.fence)

    async def _check_events(self) -> None:
        rows = await self.store.query("SELECT execution_id FROM ff.event WHERE family = 'completion'")
        expected = {row["execution_id"] for row in rows}
        self.tally.events += len(expected) if self.number == 0 else 3 * SUBMITS
        await self._receive(expected, "after the failover")

    async def _receive(self, expected: set[UUID], when: str) -> None:
        self.tally.lost += await missed_events(self.received, expected, when)

    async def _count_lost(self, ids: Sequence[UUID]) -> None:
        rows = await self.store.query("SELECT id FROM ff.execution WHERE state = 'completed'")
        self.report.lost_by_failover += len(set(ids) - {row["id"] for row in rows})


async def _run(trial: Trial) -> Tally:
    return (await run_failovers(trial.faults)).tally


ROWS = (
    Row(
        "asynchronous failover",
        "The primary is killed, and a standby that lacks the last transactions takes over",
        _run,
        minimum=50,
        short_minimum=1,
        backends=("postgres",),
    ),
)
