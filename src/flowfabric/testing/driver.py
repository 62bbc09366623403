"""A worker for tests. It runs every execution that can run now, and then returns to the test.

claim ──► run ──► claim again … until no execution can run ──► the kit may move the clock to the next due time
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from contextvars import Context
from datetime import datetime, timedelta
from uuid import UUID

from flowfabric.app.app import App
from flowfabric.core.errors import FlowFabricError
from flowfabric.core.executions.outcomes import Lease, Renewed
from flowfabric.core.executions.records import WorkerId
from flowfabric.core.validation import MAX_BATCH, MIN_LEASE_TTL
from flowfabric.engine.engine import Engine
from flowfabric.runtime.run import TaskRun, TaskRunner
from flowfabric.runtime.threads import ThreadPools
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.hooks import KitHooks

WORKER = WorkerId("testing-kit", "testing-kit")
_MAX_RUNS = 1_000
_ONE_DAY_S = 86_400.0
_ONE_MS = timedelta(milliseconds=1)
# These reconcilers only delete or count rows, so no execution continues at their due times.
_HOUSEKEEPING = frozenset({"key_collection", "retention", "flow_retention", "event_trimming", "worker_liveness"})


class Stuck(AssertionError):
    """The failure of a test whose executions cannot continue, never stop, or miss a planned crash."""


class Driver:
    """Runs the tasks of an app, with at most `concurrency` leases at the same time."""

    def __init__(self, app: App, engine: Engine, clock: VirtualClock, hooks: KitHooks, concurrency: int) -> None:
        self._app, self._engine, self._clock, self._hooks = app, engine, clock, hooks
        self._concurrency = concurrency
        self._threads = ThreadPools(max(16, concurrency))
        self._runner = TaskRunner(app, self._threads, hooks)
        self._running: dict[asyncio.Task[bool], TaskRun] = {}
        self._run_counts: Counter[UUID] = Counter()
        self._lanes: Collection[str] = ()

    async def work(self) -> None:
        """Run every execution that can run now. The clock moves only to expire the leases of killed runs."""
        self._run_counts.clear()
        self._lanes = [lane.lane for lane in (await self._engine.lanes.list(limit=MAX_BATCH)).items]
        while await self._work_once():
            pass

    async def _work_once(self) -> bool:
        """Claim leases and wait until one run ends, or run the due reconcilers. Return whether anything happened."""
        self._start(await self._claim())
        if self._running:
            await self._wait_for_one()
            if await self._expire_killed_leases():
                await self._engine.reconcilers.tick_due()
            return True
        ticks = await self._engine.reconcilers.tick_due()
        return any(tick.done or tick.has_more for tick in ticks) or await self._expire_killed_leases()

    async def _claim(self) -> Sequence[Lease]:
        free_slots, kinds = self._concurrency - len(self._running), self._runner.kinds
        if free_slots < 1 or not kinds:
            return ()
        settings = [task.settings for task in self._app.tasks.values()]
        lanes = sorted({*self._lanes, "default", *(task.lane for task in settings)})
        return await self._engine.leases.claim(
            lanes[:MAX_BATCH],
            WORKER,
            capabilities=sorted({name for task in settings for name in task.requires}),
            limit=free_slots,
            lease_ttl=MIN_LEASE_TTL,
            kinds=kinds,
        )

    def _start(self, leases: Sequence[Lease]) -> None:
        loop = asyncio.get_running_loop()
        for lease in leases:
            self._run_counts[lease.execution_id] += 1
            if self._run_counts[lease.execution_id] > _MAX_RUNS:
                raise Stuck(f"{lease.kind} {lease.execution_id} ran {_MAX_RUNS} times without the clock moving")
            run = self._runner.begin(self._engine, lease)
            self._running[loop.create_task(run.run(), context=Context())] = run

    async def _wait_for_one(self) -> None:
        """Wait until a run ends. A cancel reaches the other runs immediately, like those of a real worker."""
        with self._engine.leases.watch_held(WORKER.instance) as hints:
            hint = asyncio.create_task(hints.wait(_ONE_DAY_S))
            try:
                while not (done := await self._wait_for_any(hint)):
                    await self._renew_leases()
                    hint = asyncio.create_task(hints.wait(_ONE_DAY_S))
            finally:
                hint.cancel()
        for task in done:
            del self._running[task]
            task.result()
        await self._renew_leases()

    async def _wait_for_any(self, hint: asyncio.Task[bool]) -> set[asyncio.Task[bool]]:
        """Wait for the end of a run or for the hint. Return the runs that have ended."""
        done, _ = await asyncio.wait([*self._running, hint], return_when=asyncio.FIRST_COMPLETED)
        return done - {hint}

    async def _renew_leases(self) -> None:
        """Renew the leases of all runs.

        Then let each run check its waits again. Also notify it of a lost lease or a requested cancellation.
        """
        runs = list(self._running.items())
        outcomes = await self._engine.leases.renew_many([run.lease.fence for _, run in runs]) if runs else []
        for (task, run), outcome in zip(runs, outcomes, strict=True):
            if task.done():
                continue  # The run ended during the renewal.
            if isinstance(outcome, Renewed):
                if outcome.cancel_due_at is not None and outcome.cancel_due_at != run.cancel_due_at:
                    run.cancel_requested(outcome.cancel_due_at)
                run.waits_changed()
            else:
                run.lease_lost(outcome)

    async def _expire_killed_leases(self) -> bool:
        """Move the clock until the leases of killed runs expire. Return True if any of these leases was still held."""
        if not self._hooks.killed_leases:
            return False
        killed = {lease.fence for lease in self._hooks.killed_leases}
        self._hooks.killed_leases.clear()
        held = [lease for lease in await self._engine.leases.held(WORKER.instance) if lease.fence in killed]
        if not held:
            return False
        last, now = max(lease.expires_at for lease in held), self._clock.now()
        self._clock.advance_to(now + (last - now) / 2)
        # The other runs are alive, so renew their leases before the leases of killed runs expire.
        await self._renew_leases()
        self._clock.advance_to(last + _ONE_MS)
        return True

    async def next_due(self) -> datetime | None:
        """Return the next time at which an execution may continue, or None if no execution waits for a time."""
        due = await self._engine.reconcilers.due_times()
        times = [time for name, time in due.items() if name not in _HOUSEKEEPING]
        return min(times, default=None)

    def move_to(self, due: datetime) -> None:
        """Move the clock to a due time, or forward by a second if that time has passed."""
        if due > self._clock.now():
            self._clock.advance_to(due)
        else:
            # The reconciler has run and its work is still overdue, for example because it failed and will retry later.
            self._clock.advance(1)

    async def stop(self) -> None:
        """Abandon the remaining runs and close the threads."""
        for run in self._running.values():
            run.lease_lost(FlowFabricError("kit_closed", "the kit is closed"))
        if self._running:
            await asyncio.wait(self._running, timeout=1)
        self._threads.close()
