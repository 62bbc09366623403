"""The runs of a worker: its slots, the leases that wait for a slot, and the active runs.

A worker never runs an execution twice at the same time. An execution may be claimed again while its former run is
still cleaning up after a wait. The new lease is then deferred until that run ends; if that takes too long, the lease
renewer releases it.

A worker never runs the same lease twice (see `leases.py`). If a run ends without a confirmation from the store that its
lease has ended, the worker releases the lease in the background.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, ParamSpec
from uuid import UUID

from flowfabric.core.errors import FlowFabricError, Refused, is_permanent
from flowfabric.core.executions.outcomes import Lease, Renewed
from flowfabric.core.executions.records import Fence
from flowfabric.core.validation import MAX_BATCH
from flowfabric.engine.engine import Engine
from flowfabric.runtime.branch import BodyLeft, RunTask
from flowfabric.runtime.log import log_fields
from flowfabric.runtime.runner import Run, Runner
from flowfabric.values.failures import format_safely
from flowfabric.worker.leases import LeaseTable, RenewalReport
from flowfabric.worker.release import BackgroundReleases, FailedRun

_PREFETCH_S = 0.1
_MAX_PREFETCH = 256
_LINGER_S = 0.005
_LINGER_SHARE = 4
_MEAN_WEIGHT = 0.1
# Wait after an unexpected error, because the run would probably fail again immediately, here or on another worker.
_ERROR_PAUSE_S = 5.0
_log = logging.getLogger("flowfabric.worker")
P = ParamSpec("P")


class Slots:
    """Counts active runs and pending leases, and decides how many leases to claim.

    A worker also claims leases for which it has no free slot yet, so that free slots need not wait for the store. It
    prefetches as many as it expects to start within a moment, judging by recent run times. If runs are slow, it
    prefetches few or none, because another worker may be free for them.
    """

    def __init__(self, total: int, lease_ttl_s: float) -> None:
        self.total = total
        self.busy = 0
        self.pending = 0
        self._prefetch_s = min(_PREFETCH_S, lease_ttl_s / 10)
        self._mean_run_s: float | None = None
        self._is_claimable = asyncio.Event()
        self._has_good_share = asyncio.Event()

    @property
    def is_free(self) -> bool:
        """True if there is a free slot, so that a run can start."""
        return self.busy < self.total

    @property
    def prefetch(self) -> int:
        """How many leases to hold beyond the number of slots. The number is bounded so that all can be released."""
        if self._mean_run_s is None:
            return 0
        expected = self.total * self._prefetch_s / max(self._mean_run_s, 1e-6)
        return int(min(max(self.total, _MAX_PREFETCH), expected))

    @property
    def claimable(self) -> int:
        """How many leases to claim now."""
        return max(0, min(MAX_BATCH, self.total + self.prefetch - self.busy - self.pending))

    def start_run(self) -> None:
        """Take a slot."""
        self.busy += 1

    def end_run(self, seconds: float) -> None:
        """Free a slot after a run that took `seconds`, and update the mean run time."""
        self.busy -= 1
        mean = seconds if self._mean_run_s is None else self._mean_run_s
        self._mean_run_s = mean + _MEAN_WEIGHT * (seconds - mean)

    def slow_down(self) -> None:
        """Stop prefetching for a while, because prefetched leases could not start in time."""
        self._mean_run_s = max(self._mean_run_s or 0.0, 2 * self.total * self._prefetch_s)

    def notify_claimer(self) -> None:
        """Wake the claimer if leases can be claimed."""
        claimable = self.claimable
        if claimable > 0:
            self._is_claimable.set()
            if claimable >= self._good_share():
                self._has_good_share.set()

    async def wait_until_claimable(self) -> int:
        """Wait for free slots and return how many leases to claim.

        If slots become free quickly, wait a moment for several of them, so that one claim fills them all.
        """
        while True:
            while not self.claimable:
                self._is_claimable.clear()
                await self._is_claimable.wait()
            if self.claimable < self._good_share() and self._more_soon():
                await self._linger()
            # During the pause, a slow run may have ended, which reduces how many leases to claim.
            if claimable := self.claimable:
                return claimable

    async def _linger(self) -> None:
        self._has_good_share.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                await self._has_good_share.wait()

    def _good_share(self) -> int:
        return max(1, (self.total + self.prefetch) // _LINGER_SHARE)

    def _more_soon(self) -> bool:
        return self._mean_run_s is not None and self.busy * _LINGER_S >= self._mean_run_s


@dataclass(slots=True)
class _ActiveRun:
    lease: Lease
    run: Run
    cancel_due_at: datetime | None
    task: asyncio.Task[None] | None = None
    failure: FailedRun | None = None
    is_lease_ended: bool = False


class ActiveRuns:
    """Starts a run for each lease as slots become free, and notifies each run of renewals and loss of its lease.

    `_pending` holds the leases that wait for a slot, in order. `_deferred` holds, by execution id, the leases that wait
    until a former run of the same execution ends. Use this object only on the worker's loop.
    """

    def __init__(
        self,
        engine: Engine,
        runner: Runner,
        slots: Slots,
        lease_table: LeaseTable,
        on_store_lost: Callable[[BaseException], None],
    ) -> None:
        self._engine = engine
        self._runner = runner
        self._slots = slots
        self._lease_table = lease_table
        self._on_store_lost = on_store_lost
        self._pending: deque[Lease] = deque()
        self._deferred: dict[UUID, Lease] = {}
        self._active: dict[UUID, _ActiveRun] = {}
        self._releases = BackgroundReleases(engine, lease_table.confirm_end)
        self._is_draining = False
        self._is_settling = False
        self._idle = asyncio.Event()
        self._idle.set()

    def accept(self, leases: Sequence[Lease], requested_at: float) -> None:
        """Take over these leases, and start as many of them as there are free slots."""
        self._pending.extend(self._lease_table.add(leases, requested_at))
        self._start_pending()

    def give_back(self, leases: Sequence[Lease]) -> None:
        """Release leases that the store still lists although their runs have ended."""
        for lease in leases:
            if self._find(lease.fence) is None:
                self._releases.add(lease.fence)

    def on_report(self, report: RenewalReport) -> None:
        """Forward the result of a renewal round to the runs."""
        if report.released:
            self._slots.slow_down()
        if report.released or report.lost:
            gone = {*report.lost, *report.released}
            self._pending = deque(lease for lease in self._pending if lease.fence not in gone)
            self._deferred = {id_: lease for id_, lease in self._deferred.items() if lease.fence not in gone}
            self._start_pending()
        for fence, error in report.lost.items():
            if active := self._find(fence):
                _notify(active.run.lease_lost, error)
        for fence, renewed in report.renewed.items():
            if active := self._find(fence):
                _forward_renewal(active, renewed)

    def drain(self) -> list[Fence]:
        """Stop starting runs, ask active runs to unwind, and return the unstarted leases."""
        self._is_draining = True
        for active in list(self._active.values()):
            _notify(active.run.drain)
        return self.take_unstarted()

    def take_unstarted(self) -> list[Fence]:
        """Remove and return the unstarted leases. The caller must release them."""
        fences = [lease.fence for lease in (*self._pending, *self._deferred.values())]
        self._pending.clear()
        self._deferred.clear()
        return [fence for fence in fences if self._lease_table.remove(fence.lease_id)]

    @property
    def is_busy(self) -> bool:
        """True while there are active runs."""
        return bool(self._active)

    async def wait_until_idle(self) -> None:
        """Wait until there are no active runs."""
        await self._idle.wait()

    async def finish_releases(self) -> None:
        """Wait a moment for the releases in the background, then leave the remaining leases to expire."""
        await self._releases.close()

    def abandon(self, error: FlowFabricError) -> list[Fence]:
        """Notify all active runs of the loss of their lease, and return these leases, which the caller must release."""
        remaining = list(self._active.values())
        for active in remaining:
            if not is_permanent(error):
                message, fields = "%s did not end in time, releasing its lease", log_fields(active.lease)
                _log.warning(message, _name(active.lease), extra=fields)
            _notify(active.run.lease_lost, error)
        return [active.lease.fence for active in remaining if self._lease_table.remove(active.lease.fence.lease_id)]

    def cancel(self) -> list[asyncio.Task[None]]:
        """Cancel and return the tasks of all active runs."""
        tasks = [active.task for active in self._active.values() if active.task is not None]
        for task in tasks:
            if isinstance(task, RunTask):
                task.cancel_run()
            else:
                task.cancel()
        return tasks

    def _start_pending(self) -> None:
        while self._pending and self._slots.is_free and not self._is_draining:
            lease = self._pending.popleft()
            if former := self._active.get(lease.execution_id):
                self._deferred[lease.execution_id] = lease
                self._end_former(former)
            elif self._lease_table.start(lease.fence.lease_id):
                self._start(lease)
        self._slots.pending = len(self._pending)
        self._slots.notify_claimer()

    def _end_former(self, former: _ActiveRun) -> None:
        """Notify a former run of the loss of its lease. The newer lease of the same execution proves this loss."""
        if self._lease_table.remove(former.lease.fence.lease_id):
            _notify(former.run.lease_lost, Refused("stale_lease", "the execution was claimed again"))

    def _start(self, lease: Lease) -> None:
        self._slots.start_run()
        self._idle.clear()
        try:
            is_held = self._lease_table.check_of(lease.fence.lease_id)
            run: Run = self._runner.begin(self._engine.for_lease(lease), lease, is_held)
        except Exception as error:
            run = _FailedRun(error)
        active = self._active[lease.execution_id] = _ActiveRun(lease, run, lease.cancel_due_at)
        work, take_over = self._run(active, run.run()), partial(self._take_over, active)
        active.task = RunTask(work, asyncio.get_running_loop(), take_over)

    def _take_over(self, active: _ActiveRun, rest: Coroutine[Any, Any, bool]) -> None:
        """Do the rest of a run in another asyncio task, because the body does not leave the first one."""
        active.task = asyncio.get_running_loop().create_task(self._run(active, rest), context=Context())

    async def _run(self, active: _ActiveRun, work: Coroutine[Any, Any, bool]) -> None:
        began = time.monotonic()
        is_left = False
        try:
            active.is_lease_ended = await work
        except BodyLeft:
            is_left = True
        except asyncio.CancelledError as error:
            if not self._is_draining:
                self._postpone(active, error)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            if is_permanent(error):
                self._on_store_lost(error)
            else:
                self._postpone(active, error)
        finally:
            if not is_left:
                self._end(active, time.monotonic() - began)

    def _postpone(self, active: _ActiveRun, error: BaseException) -> None:
        report = format_safely(error)
        message, fields = "Run of %s failed unexpectedly, retrying in %g s\n%s", log_fields(active.lease)
        _log.error(message, _name(active.lease), _ERROR_PAUSE_S, report, extra=fields)
        active.failure = FailedRun(report, self._runner.version, _ERROR_PAUSE_S)

    def _end(self, active: _ActiveRun, seconds: float) -> None:
        lease = active.lease
        if active.is_lease_ended:
            self._lease_table.confirm_end(lease.fence.lease_id)
        else:
            self._lease_table.remove(lease.fence.lease_id)
            self._releases.add(lease.fence, active.run.wait_stopped, active.failure)
        del self._active[lease.execution_id]
        active.task = None
        self._slots.end_run(seconds)
        if (deferred := self._deferred.pop(lease.execution_id, None)) is not None:
            self._pending.appendleft(deferred)
        if not self._is_settling:
            # Runs that end in the same turn of the event loop are settled together.
            self._is_settling = True
            asyncio.get_running_loop().call_soon(self._settle)
        if not self._active:
            self._idle.set()

    def _settle(self) -> None:
        self._is_settling = False
        self._start_pending()

    def _find(self, fence: Fence) -> _ActiveRun | None:
        active = self._active.get(fence.execution_id)
        return active if active is not None and active.lease.fence == fence else None


class _FailedRun:
    """Stands in for a run that could not be created."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def run(self) -> bool:
        raise self._error

    async def wait_stopped(self) -> None: ...

    def lease_lost(self, error: FlowFabricError) -> None: ...
    def cancel_requested(self, due_at: datetime) -> None: ...
    def drain(self) -> None: ...
    def waits_changed(self) -> None: ...


def _forward_renewal(active: _ActiveRun, renewed: Renewed) -> None:
    due_at = renewed.cancel_due_at
    if due_at is not None and due_at != active.cancel_due_at:
        active.cancel_due_at = due_at
        _notify(active.run.cancel_requested, due_at)
    _notify(active.run.waits_changed)


def _notify(callback: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call a method of a run. If it raises, log the exception, so that the other runs are still notified."""
    try:
        callback(*args, **kwargs)
    except Exception:
        _log.exception("Run failed to handle a notification")


def _name(lease: Lease) -> str:
    return f"{lease.kind} {lease.execution_id}"
