"""The loop that runs the duties.

    read the next due times ──► run overdue duties ──► sleep until the earliest due time ──┐
              ▲                                        or until `wake_for`                 │
              └────────────────────────────────────────────────────────────────────────────┘

A duty runs when its due time has come by the store's clock, never earlier. A commit with an earlier due time wakes the
loop, directly or by a notification from another process. A poll interval bounds the delay if notifications are lost.
The loop itself sleeps by the monotonic clock, because the store's clock may jump.

If the store's clock goes back, leases get more time than their term. The loop notices this and shortens them. It also
does so when it starts, because the clock may have gone back before.

The statement that reads the due times also reads whether idle workers of this process could claim work. So these
workers need not try to claim unnecessarily.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

from flowfabric.core.errors import FlowFabricError, is_permanent
from flowfabric.core.retention import EventRetention
from flowfabric.core.validation import MIN_TIME
from flowfabric.notify.hub import NotifyHub
from flowfabric.reconcilers.duties import make_duties, make_lease_terms_duty
from flowfabric.reconcilers.duty import Tick, Tickable
from flowfabric.reconcilers.vacuum import Vacuum
from flowfabric.store.due import DueQuery, DueReport
from flowfabric.store.ports import Store

_log = logging.getLogger("flowfabric.reconcilers")
_MAX_BACKOFF_S = 5.0
_MIN_RETRY_S = 0.125
_MAX_RETRY_S = 1.0
_ROUNDS_UNTIL_STALLED = 4
_MAX_CLOCK_ERROR = timedelta(seconds=0.25)


class Reconcilers:
    """All background duties of one store, and the loop that runs them."""

    def __init__(
        self,
        store: Store,
        notify_hub: NotifyHub,
        retention: EventRetention,
        vacuum: Vacuum,
        poll_s: float | None = None,
    ) -> None:
        self._store = store
        self._notify_hub = notify_hub
        self._retention = retention
        self._poll_s = poll_s
        self._duties = make_duties(retention)
        self._vacuum = vacuum
        self._wake = asyncio.Event()
        self._lease_terms = make_lease_terms_duty()
        self._must_check_terms = True
        self._last_report: tuple[datetime, float] | None = None
        self._wakes_at: float | None = None
        self._idle_rounds = 0
        notify_hub.on_due(self.wake_for)

    async def tick(self) -> list[Tick]:
        """Run every duty once, due or not."""
        return [await duty.tick(self._store) for duty in (*self._duties, self._lease_terms)]

    async def tick_due(self) -> list[Tick]:
        """Run every overdue duty once."""
        report = await self._read_due(MIN_TIME)
        return [await duty.tick(self._store) for duty in self._duties if duty.name in report.overdue]

    async def now(self) -> datetime:
        """Return the store's time, which is never before a time that the store has recorded."""
        return (await self._read_due(MIN_TIME)).now

    async def due_times(self) -> dict[str, datetime]:
        """Return the next due time of each duty that has one."""
        report = await self._read_due(MIN_TIME)
        return {name: time for name, time in report.due.items() if time is not None}

    @asynccontextmanager
    async def run_in_background(
        self, on_store_lost: Callable[[FlowFabricError], None] | None = None
    ) -> AsyncIterator[None]:
        """Run the duties in the background inside the block.

        If the store is lost for this process, the duties stop, and `on_store_lost` gets the error.
        """
        tasks = [
            asyncio.create_task(self._run(on_store_lost or _log_loss), name="flowfabric-reconcilers"),
            asyncio.create_task(self._vacuum.run(), name="flowfabric-vacuum"),
        ]
        self._notify_hub.active_reconcilers += 1
        try:
            # A waiter without topics only starts the listener.
            with self._notify_hub.waiter(()):
                yield
        finally:
            self._notify_hub.active_reconcilers -= 1
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def wake_for(self, due: datetime | None = None) -> None:
        """Wake the loop if it would sleep past the time `due`. None means an unknown time, and always wakes it."""
        if due is None or self._wakes_at is None:
            self._wake.set()
            return
        remaining = due - self._notify_hub.store_now()
        if time.monotonic() + remaining.total_seconds() < self._wakes_at:
            self._wake.set()

    async def _run(self, on_store_lost: Callable[[FlowFabricError], None]) -> None:
        failures = 0
        while True:
            try:
                pause_s = await self._run_overdue()
                failures = 0
            except FlowFabricError as error:
                if is_permanent(error):
                    on_store_lost(error)
                    return
                failures += 1
                pause_s = random.uniform(0, min(_MAX_BACKOFF_S, 0.05 * 2**failures))
                _log.warning("Reconcilers failed, retrying in %g s: %s", pause_s, error)
            except Exception:
                failures += 1
                pause_s = _MAX_BACKOFF_S
                _log.exception("Reconcilers failed unexpectedly, retrying in %g s", pause_s)
            await self._sleep(pause_s)

    async def _run_overdue(self) -> float:
        """Run the overdue duties and return how long to sleep."""
        self._wake.clear()
        self._wakes_at = None
        report = await self._read_due(MIN_TIME)
        ticks = [await self._tick(duty) for duty in self._duties if duty.name in report.overdue]
        if self._must_check_terms:
            ticks.append(await self._lease_terms.tick(self._store))
            self._must_check_terms = await self._lease_terms.is_due(self._store)
        if any(tick.has_more or tick.done for tick in ticks):
            return 0.0
        self._idle_rounds = self._idle_rounds + 1 if report.overdue else 0
        if self._idle_rounds and self._idle_rounds % _ROUNDS_UNTIL_STALLED == 0:
            await self._end_stalled_sessions()
        if report.overdue:
            # Rows that fail or are locked must not hide later due times.
            report = await self._read_due(report.now)
        return self._pause(report.now, report.due)

    async def _end_stalled_sessions(self) -> None:
        """End the sessions of vanished processes, which may have locked the overdue rows."""
        if number := await self._store.end_stalled_sessions():
            _log.warning("Ended %d database sessions that had stopped in the middle of a statement", number)

    async def _read_due(self, after: datetime) -> DueReport:
        lanes, capabilities = self._notify_hub.waiters.waiting_lanes()
        query = DueQuery(after=after, retention=self._retention, lanes=lanes, capabilities=capabilities)
        requested_at = time.monotonic()
        report = await self._store.read_single(lambda tx: tx.due.read_report(query))
        self._check_clock(report.now, requested_at)
        self._notify_hub.learn_time(report.now, requested_at)
        if report.has_work:
            self._notify_hub.waiters.notify_workers()
        return report

    def _check_clock(self, now: datetime, requested_at: float) -> None:
        """Note whether the store's clock has gone back since the last report."""
        if self._last_report is not None:
            earlier, received_at = self._last_report
            if now < earlier + timedelta(seconds=requested_at - received_at) - _MAX_CLOCK_ERROR:
                self._must_check_terms = True
        self._last_report = now, time.monotonic()

    async def _tick(self, duty: Tickable) -> Tick:
        """Run one duty. If it fails, log the failure instead of raising it, so that the other duties still run."""
        try:
            return await duty.tick(self._store)
        except FlowFabricError as error:
            if is_permanent(error):
                raise
            _log.warning("Duty %s failed and will be retried: %s", duty.name, error)
        except Exception:
            _log.exception("Duty %s failed unexpectedly and will be retried", duty.name)
        return Tick(duty.name, done=0, failed=0, has_more=False)

    def _pause(self, now: datetime, due: Mapping[str, datetime | None]) -> float:
        later = [time - now for time in due.values() if time is not None and time > now]
        pause = min([timedelta(seconds=self._max_pause_s), self._notify_hub.shortest_lease / 2, *later])
        self._wakes_at = time.monotonic() + pause.total_seconds()
        return pause.total_seconds()

    @property
    def _max_pause_s(self) -> float:
        poll_s = self._notify_hub.poll_interval_s if self._poll_s is None else self._poll_s
        if self._idle_rounds or self._must_check_terms:
            # Overdue rows were locked or failed. No notification reports the end of a lock, so retry soon.
            return min(poll_s, _MAX_RETRY_S, _MIN_RETRY_S * 2.0 ** min(self._idle_rounds, 10))
        return poll_s

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return


def _log_loss(error: FlowFabricError) -> None:
    _log.error("Reconcilers stopped: %s", error)
