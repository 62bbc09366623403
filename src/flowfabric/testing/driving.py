"""Work performed by hand: what can go on goes on, one lease after another, and time moves only when it is told to.

claim ──► perform ──► claim again … until nothing can go on ──► the clock moves to the next due time, if it may
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from contextvars import Context
from datetime import datetime, timedelta
from uuid import UUID

from flowfabric.core.errors import FlowFabricError
from flowfabric.core.limits import BATCH, LEASE_TTL_LEAST
from flowfabric.core.outcomes import Lease, Renewed
from flowfabric.core.records import WorkerId
from flowfabric.engine.engine import Engine
from flowfabric.sdk.app import App
from flowfabric.sdk.run import Run, Runner
from flowfabric.sdk.threads import ThreadPools
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.watching import Watch

WORKER = WorkerId("testing-kit", "testing-kit")
_MOST_RUNS = 1_000
_MOMENT = timedelta(milliseconds=1)
# What is removed or counted by these moves no execution.
_HOUSEKEEPING = frozenset({"key_collection", "retention", "flow_retention", "event_trimming", "worker_liveness"})


class Stuck(AssertionError):
    """Nothing can move any more, or something moves for ever."""


class Driver:
    """Performs the tasks of an app on an engine, up to so many leases at once."""

    def __init__(self, app: App, engine: Engine, clock: VirtualClock, watch: Watch, concurrency: int) -> None:
        self._app, self._engine, self._clock, self._watch = app, engine, clock, watch
        self._concurrency = concurrency
        self._threads = ThreadPools(max(16, concurrency))
        self._runner = Runner(app, self._threads, watch)
        self._running: dict[asyncio.Task[None], Run] = {}
        self._times: Counter[UUID] = Counter()
        self._lanes: Collection[str] = ()

    async def work(self) -> None:
        """Performs what can be performed without time going on."""
        self._times.clear()
        self._lanes = await self._engine.lanes.list()
        while await self._work_once():
            pass

    async def _work_once(self) -> bool:
        """One round: claims and the end of at least one run, or else what is due. False if there was nothing."""
        self._start(await self._claim())
        if self._running:
            await self._until_one_ends()
            if await self._bury_the_dead():
                await self._engine.reconcilers.tick_due()
            return True
        ticks = await self._engine.reconcilers.tick_due()
        return any(tick.done or tick.more for tick in ticks) or await self._bury_the_dead()

    async def _claim(self) -> Sequence[Lease]:
        room, kinds = self._concurrency - len(self._running), self._runner.kinds
        if room < 1 or not kinds:
            return ()
        settings = [task.settings for task in self._app.tasks.values()]
        lanes = sorted({*self._lanes, "default", *(item.lane for item in settings)})
        return await self._engine.leases.claim(
            lanes[:BATCH], WORKER, capabilities=sorted({name for item in settings for name in item.requires}),
            limit=room, lease_ttl=LEASE_TTL_LEAST, kinds=kinds,
        )  # fmt: skip

    def _start(self, leases: Sequence[Lease]) -> None:
        loop = asyncio.get_running_loop()
        for lease in leases:
            self._times[lease.execution_id] += 1
            if self._times[lease.execution_id] > _MOST_RUNS:
                raise Stuck(f"{lease.kind} {lease.execution_id} was run {_MOST_RUNS} times while no time went by")
            run = self._runner.begin(self._engine, lease)
            self._running[loop.create_task(run.perform(), context=Context())] = run

    async def _until_one_ends(self) -> None:
        done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            del self._running[task]
            task.result()
        await self._tell_the_others()

    async def _tell_the_others(self) -> None:
        """What one run did may have ended the lease of another, or what it waits for."""
        runs = list(self._running.values())
        answers = await self._engine.leases.renew_many([run.lease.fence for run in runs]) if runs else []
        for run, answer in zip(runs, answers, strict=True):
            if isinstance(answer, Renewed):
                if answer.cancel_due_at is not None and answer.cancel_due_at != run.cancel_due_at:
                    run.cancel_requested(answer.cancel_due_at)
                run.news()
            else:
                run.lease_lost(answer)

    async def _bury_the_dead(self) -> bool:
        """Lets the leases of killed runs run out, if they are still held. True if there were any."""
        if not self._watch.dead:
            return False
        killed = {lease.fence for lease in self._watch.dead}
        self._watch.dead.clear()
        held = [lease for lease in await self._engine.leases.held(WORKER.instance) if lease.fence in killed]
        if not held:
            return False
        last, now = max(lease.expires_at for lease in held), self._clock.now()
        self._clock.advance_to(now + (last - now) / 2)
        # The others are not dead, so their leases go on.
        await self._tell_the_others()
        self._clock.advance_to(last + _MOMENT)
        return True

    async def next_due(self) -> datetime | None:
        """When something can go on by time alone."""
        due = await self._engine.reconcilers.due()
        times = [time for name, time in due.items() if name not in _HOUSEKEEPING]
        return min(times, default=None)

    def move_to(self, due: datetime) -> None:
        """Moves the clock to a due time."""
        if due > self._clock.now():
            self._clock.advance_to(due)
        else:
            # What is overdue and was not done waits for its turn, for example after a failure of its own.
            self._clock.advance(1)

    async def stop(self) -> None:
        """Ends what still runs, and the threads."""
        for run in self._running.values():
            run.lease_lost(FlowFabricError("kit_closed", "the kit was left"))
        if self._running:
            await asyncio.wait(self._running, timeout=1)
        self._threads.close()
