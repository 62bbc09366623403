"""The waits of a run. A branch continues as soon as its wait ends. When all branches wait, the run is suspended."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from flowfabric.core.errors import InvalidRequest, NotFound
from flowfabric.core.executions.outcomes import Satisfied
from flowfabric.core.flows.outcomes import WaitingForChildren
from flowfabric.core.validation import MAX_BATCH
from flowfabric.core.waits.records import UnusedWaitpoints
from flowfabric.core.waits.snapshot import WaitSnapshot
from flowfabric.runtime.record_writer import retry_while_owned
from flowfabric.runtime.sync_bridge import leave_threads
from flowfabric.runtime.waits import (
    MAX_OPEN_WAITS,
    Verdict,
    Wait,
    child_waits,
    earliest_due,
    is_bad_end,
    suspend_request,
)
from flowfabric.values.errors import CancelRequested, Unwind

if TYPE_CHECKING:
    from flowfabric.runtime.branch import Branch
    from flowfabric.runtime.run import TaskRun


async def suspend_run(run: TaskRun, waits: Sequence[Wait]) -> bool:
    """Give up the lease until one of the waits ends.

    If a wait has already ended, keep the lease and return True.
    """
    writer, leases, fence = run.record_writer, run.engine.leases, run.lease.fence
    if all(wait.condition() is None for wait in waits):
        due = earliest_due(waits)
        await writer.commit_with(lambda steps: leases.delay(fence, until=due, steps=steps))
        return False
    if len(waits) > MAX_OPEN_WAITS and (family := child_waits(waits)) is not None:
        children, join, edge = family
        with suppress(NotFound):  # Some of them are not children of this execution: suspend below.
            waiting = await writer.commit_with(
                lambda steps: leases.wait_children(fence, children, join=join, edge=edge, steps=steps)
            )
            return not isinstance(waiting, WaitingForChildren)
    request, id_ = suspend_request(waits), run.engine.mint_id()
    end = None if request.timeout_at is None else max(request.timeout_at, run.now())
    outcome = await writer.commit_with(
        lambda steps: leases.suspend(
            fence,
            request.bindings,
            request.condition,
            reason=request.reason,
            timeout_at=end,
            on_timeout=request.on_timeout,
            unused_waitpoints=UnusedWaitpoints.KEEP,
            steps=steps,
            id=id_,
        )
    )
    return isinstance(outcome, Satisfied)


async def read_waits(run: TaskRun, waits: Sequence[Wait]) -> WaitSnapshot | None:
    """Return the signals and ends of children that the waits need, or None if all waits only wait for a time."""
    keys = {key: after for wait in waits for key, after in wait.keys().items()}
    children = [wait.child for wait in waits if wait.child is not None]
    for wait in waits:
        wait.needs_read = False
    if not keys and not children:
        return None
    snapshot = await read_waits_for(run, keys, children[:MAX_BATCH])
    for start in range(MAX_BATCH, len(children), MAX_BATCH):
        more = await read_waits_for(run, {}, children[start : start + MAX_BATCH])
        snapshot = replace(snapshot, children={**snapshot.children, **more.children})
    return snapshot


async def read_waits_for(run: TaskRun, keys: Mapping[str, int], children: Sequence[UUID]) -> WaitSnapshot:
    """Return the signals at these waitpoints and the ends of these executions."""
    skipped = sorted(seq for key in keys for seq in run.calls.signals.skipped(key))[:MAX_BATCH]
    read = run.engine.leases.read_waits
    snapshot = await retry_while_owned(run, lambda: read(run.lease.fence, keys, children, skipped=skipped))
    run.calls.check_over()
    if snapshot is None:
        raise Unwind
    return snapshot


LOG = logging.getLogger("flowfabric")


class StallDetector:
    """Logs a warning once if a run makes no progress, but cannot be suspended, for the time of a whole lease.

    This happens, for example, if one branch needs a lock that another branch holds during a durable wait.
    """

    def __init__(self, run: TaskRun) -> None:
        self._run = run
        self._calls, self._since = 0, run.loop.time()

    def check(self, parked: Wait) -> float:
        """Check the run while one branch waits and another is active. Return the seconds until the next check."""
        run = self._run
        lease_s = (run.lease.expires_at - run.lease.acquired_at).total_seconds()
        calls, now = len(run.calls.made_calls), run.loop.time()
        if run.in_flight or calls != self._calls:
            self._calls, self._since = calls, now
        elif now - self._since >= lease_s:
            self._since = math.inf
            message = "%s keeps its slot while %s waits; is a lock held across a wait?"
            LOG.warning(message, run.task.name, parked.path)
        return lease_s


MAX_EMPTY_WAKEUPS = 3
RECHECK_S = 0.5


class Suspender:
    """The waits of a run. `active` counts the branches whose code runs. When it is zero, the run gives up its lease."""

    def __init__(self, run: TaskRun) -> None:
        self._run = run
        self.active = 0
        self.waiting: dict[Wait, Branch] = {}
        self.is_suspending = False
        self._empty_wakeups = 0
        self._is_scheduled = False
        self._checking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stall_detector = StallDetector(run)

    async def wait(self, branch: Branch, wait: Wait) -> Verdict:
        """Return how the wait ended. Raise `Unwind` if the run is suspended."""
        self._run.calls.check_alive(branch)
        self.waiting[wait] = branch
        self.active -= 1
        self.schedule_check()
        try:
            return await wait.future
        finally:
            if self.waiting.pop(wait, None) is not None:
                self.active += 1  # The branch's own code cancelled the wait and continues.

    def resolve(self, wait: Wait, verdict: Verdict | BaseException) -> None:
        """End the wait with this verdict or error, so that its branch continues."""
        if wait.future.done():
            return
        self.waiting.pop(wait, None)
        self.active += 1
        if isinstance(verdict, BaseException):
            wait.future.set_exception(verdict)
        else:
            wait.future.set_result(verdict)

    def unwind_dropped(self) -> None:
        """Unwind the waits of dropped branches."""
        for wait, branch in list(self.waiting.items()):
            if branch.is_dropped:
                self.resolve(wait, Unwind())

    def deliver_cancel(self) -> None:
        """Deliver a request to cancel at the oldest open wait.

        While the run is being suspended, do nothing, because the next run delivers the request.
        """
        run = self._run
        is_due = run.cancel_due_at is not None and not run.calls.cancel_delivered
        if is_due and self.waiting and not self.is_suspending and not run.is_over:
            wait = next(iter(self.waiting))
            run.calls.deliver_cancel(wait.call)
            self.resolve(wait, CancelRequested())

    def branch_active(self) -> None:
        """Count one more active branch."""
        self.active += 1

    def branch_idle(self) -> None:
        """Count one active branch less, because it has ended or waits for the members of its group."""
        self.active -= 1
        self.schedule_check()

    def recheck(self) -> None:
        """Read the stored state of all waits again."""
        for wait in self.waiting:
            wait.needs_read = True
        self.schedule_check()

    def schedule_check(self) -> None:
        """Check the waits as soon as the running code returns to the event loop."""
        if self.waiting and not self._is_scheduled:
            self._is_scheduled = True
            self._run.loop.call_soon(self._start_check)

    async def wait_idle(self) -> None:
        """Return when no check of the waits is in progress."""
        if self._timer is not None:
            self._timer.cancel()
        if self._checking is not None and not self._checking.done():
            await asyncio.wait([self._checking])

    def _start_check(self) -> None:
        self._is_scheduled = False
        is_busy = self._checking is not None and not self._checking.done()
        if self.waiting and not is_busy and not self._run.is_over:
            self._checking = self._run.loop.create_task(self._check_waits())

    async def _check_waits(self) -> None:
        try:
            checked = set(self.waiting)
            if await self._resolve_ended(read=any(wait.needs_read for wait in checked)) or not self.waiting:
                return
            if self.active == 0 and not checked.issuperset(self.waiting):
                return  # Waits that began during this check may have ended too, so check again before suspending.
            if self.active == 0 and self._run.is_draining:
                self._run.unwind()
            elif self.active == 0:
                self._run.hooks.suspending(self._run)
                self._run.calls.check_over()
                await self._suspend()
            else:
                self._schedule_timer()
        except Unwind:
            pass
        except Exception as error:
            for wait in list(self.waiting)[:1]:
                self.resolve(wait, error)
        finally:
            self._checking = None
            if self.waiting and (self.active == 0 or any(wait.needs_read for wait in self.waiting)):
                self.schedule_check()

    def _schedule_timer(self) -> None:
        """Free the threads of waiting branches, and schedule the next check while other branches are active.

        The next check runs at the earliest due time, or after a fixed pause if that is sooner.
        """
        leave_threads(self.waiting.values())
        due = earliest_due(list(self.waiting))
        timers = [(self.schedule_check, self._stall_detector.check(next(iter(self.waiting))))]
        if due is not None:
            timers.append((self.recheck, (due - self._run.now()).total_seconds()))
        if any(wait.condition() is not None for wait in self.waiting):
            timers.append((self.recheck, RECHECK_S))
        if self._timer is not None:
            self._timer.cancel()
        callback, pause_s = min(timers, key=lambda entry: entry[1])
        self._timer = self._run.loop.call_later(max(0.0, pause_s), callback)

    async def _resolve_ended(self, *, read: bool) -> bool:
        """Resume the branches whose waits have ended. Return False if no wait has ended."""
        waits, now = list(self.waiting), self._run.now()
        # A signal that was accepted before the due time still ends its wait, so read signals before a wait times out.
        read = read or any(wait.condition() is not None and wait.is_due(now) for wait in waits)
        snapshot = await read_waits(self._run, waits) if read else None
        now = now if snapshot is None else max(snapshot.now, self._run.now())
        any_ended = False
        for wait in waits:
            branch = self.waiting.get(wait)
            if branch is None or branch.is_dropped or (branch.race is not None and branch.race.has_winner):
                continue  # A loser of a race must not use signals.
            verdict = wait.find_end(snapshot, now)
            if verdict is not None:
                any_ended = True
                if branch.race is not None and not is_bad_end(verdict):
                    branch.race.has_winner = True
                self.resolve(wait, verdict)
        return any_ended

    async def _suspend(self) -> None:
        """Give up the lease until a branch can continue. If a branch can continue already, keep the lease."""
        self.is_suspending = True
        try:
            is_kept = await suspend_run(self._run, list(self.waiting))
        finally:
            self.is_suspending = False
        if self._run.loss is not None:
            return
        if not is_kept:
            self._run.is_suspended = True
            self._run.unwind()
            return
        self.deliver_cancel()
        self._empty_wakeups = 0 if await self._resolve_ended(read=True) else self._empty_wakeups + 1
        if self._empty_wakeups >= MAX_EMPTY_WAKEUPS:
            raise InvalidRequest("wait_not_understood", "the store reports that a wait has ended, but none has")
