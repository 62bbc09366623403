"""The waits of a run. A branch continues as soon as its wait ends. When all branches wait, the run is suspended."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from flowfabric.core.errors import FlowFabricError, InvalidRequest, NotFound
from flowfabric.core.executions.outcomes import OpenWaitpoint, Satisfied
from flowfabric.core.flows.outcomes import WaitingForChildren
from flowfabric.core.validation import MAX_BATCH
from flowfabric.core.waits.bindings import NewWaitpoint
from flowfabric.core.waits.records import UnusedWaitpoints
from flowfabric.core.waits.snapshot import MAX_SIGNALS, WaitSnapshot
from flowfabric.runtime.log import LOG, log_fields
from flowfabric.runtime.progress import send_last
from flowfabric.runtime.record_writer import retry_while_owned
from flowfabric.runtime.sync_bridge import leave_threads
from flowfabric.runtime.waits import (
    MAX_OPEN_WAITS,
    ChildEnded,
    SignalsArrived,
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


class WaitReader:
    """The stored state of some waits. Of a long queue of signals, it reads only as many as the waits need.

    `_places` has the position up to which each queue is read, and `_limits` the size of its last page.
    """

    def __init__(
        self, run: TaskRun, snapshot: WaitSnapshot, places: Mapping[str, int], limits: Mapping[str, int]
    ) -> None:
        self._run, self.snapshot = run, snapshot
        self._places, self._limits = dict(places), dict(limits)

    async def read_more(self, keys: Iterable[str]) -> bool:
        """Read the next signals at these waitpoints. Return False if there are none."""
        more = {key: last for key in keys if (last := self._end_of_page(key)) is not None}
        if not more:
            return False
        self._places.update(more)
        self._limits.update(dict.fromkeys(more, MAX_SIGNALS))
        page = await read_waits_for(self._run, more, (), self._limits)
        known = {signal.seq for signal in self.snapshot.signals}
        new = tuple(signal for signal in page.signals if signal.seq not in known)
        signals = sorted((*self.snapshot.signals, *new), key=lambda signal: signal.seq)
        self.snapshot = replace(self.snapshot, signals=tuple(signals))
        return bool(new)

    def _end_of_page(self, key: str) -> int | None:
        """Return the number of the last signal in the last page of a queue, or None if the page was not full."""
        page = [
            signal.seq
            for signal in self.snapshot.signals
            # Signals of a suspension are always read, regardless of the limit.
            if signal.waitpoint == key and signal.suspension is None and signal.seq > self._places.get(key, 0)
        ]
        return page[-1] if len(page) >= self._limits.get(key, MAX_SIGNALS) else None


async def read_waits(run: TaskRun, waits: Sequence[Wait]) -> WaitReader | None:
    """Read the signals and ends of children that the waits need. Return None if all waits only wait for a time."""
    keys = {key: after for wait in waits for key, after in wait.keys().items()}
    children = [wait.child for wait in waits if wait.child is not None]
    for wait in waits:
        wait.needs_read = False
    if not keys and not children:
        return None
    limits: Counter[str] = Counter()
    for wait in waits if keys else ():
        limits.update(wait.limits())
    limits = Counter({key: min(limits[key], MAX_BATCH) for key in keys if limits[key]})
    snapshot = await read_waits_for(run, keys, children[:MAX_BATCH], limits)
    for start in range(MAX_BATCH, len(children), MAX_BATCH):
        more = await read_waits_for(run, {}, children[start : start + MAX_BATCH])
        snapshot = replace(snapshot, children={**snapshot.children, **more.children})
    return WaitReader(run, snapshot, keys, limits)


async def read_waits_for(
    run: TaskRun, keys: Mapping[str, int], children: Sequence[UUID], limits: Mapping[str, int] | None = None
) -> WaitSnapshot:
    """Return the signals at these waitpoints and the ends of these executions."""
    skipped = sorted(seq for key in keys for seq in run.calls.signals.skipped(key))[:MAX_BATCH]
    read = run.engine.leases.read_waits
    snapshot = await retry_while_owned(
        run, lambda: read(run.lease.fence, keys, children, skipped=skipped, limits=limits)
    )
    run.calls.check_over()
    if snapshot is None:
        raise Unwind
    return snapshot


async def skip_unreadable(run: TaskRun, waits: Sequence[Wait]) -> bool:
    """Skip the signals that the waits cannot read. Return True if there are any.

    The store then returns them to no wait, so that the waits stay open and the next run finds the same signals.
    """
    found = {seq: entry for wait in waits for seq, entry in wait.unreadable.items()}
    for seq, entry in found.items():
        signal, skip = entry.signal, partial(run.engine.signals.skip, run.lease.fence, seq, entry.reason)
        if await retry_while_owned(run, skip):
            message, names = "%s %s skipped signal %s at %s: %s", (run.task.name, run.lease.execution_id)
            LOG.warning(message, *names, signal.id, signal.waitpoint, entry.reason, extra=log_fields(run.lease))
        run.calls.check_over()
    for wait in waits:
        wait.unreadable.clear()
    return bool(found)


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
            LOG.warning(message, run.task.name, parked.path, extra=log_fields(run.lease))
        return lease_s


MAX_EMPTY_WAKEUPS = 3
RECHECK_S = 0.5


class Suspender:
    """The waits of a run. `active` counts the branches whose code runs. When it is zero, the run gives up its lease.

    A suspend opens the waitpoints of its waits. While another branch is active, the run opens them before, so that
    senders reach a wait that is not suspended yet. `opened` has the ids of these waitpoints by their keys.
    """

    def __init__(self, run: TaskRun) -> None:
        self._run = run
        self.active = 0
        self.waiting: dict[Wait, Branch] = {}
        self.opened: dict[str, UUID] = {}
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
        checked = set(self.waiting)
        try:
            if await self._resolve_ended(read=any(wait.needs_read for wait in checked)) or not self.waiting:
                return
            if self.active == 0 and (not checked.issuperset(self.waiting) or await send_last(self._run)):
                return  # Waits that began during this check may have ended too, so check again before suspending.
            if self.active == 0 and self._run.is_draining:
                self._run.unwind()
            elif self.active == 0:
                self._run.hooks.suspending(self._run)
                self._run.calls.check_over()
                await self._suspend()
            else:
                await self._open_waitpoints()
                self._schedule_timer()
        except Unwind:
            pass
        except Exception as error:
            for wait in list(self.waiting)[:1]:
                self.resolve(wait, error)
        finally:
            self._checking = None
            is_complete = checked.issuperset(self.waiting) and not any(wait.needs_read for wait in self.waiting)
            if self.active == 0 or not is_complete:
                self.schedule_check()

    async def _open_waitpoints(self) -> None:
        """Open the waitpoints of waits beside an active branch, so that senders can reach them."""
        if not self._unopened_waitpoints():
            return
        create, fence = self._run.engine.waitpoints.create_many, self._run.lease.fence
        # A wait may end until the commit begins, so the function finds the waitpoints again.
        opened = await self._run.record_writer.commit_with(
            lambda steps: create(fence, self._unopened_waitpoints(), steps=steps), keeps_lease=True
        )
        self._run.calls.check_over()
        self.note_opened(opened or ())

    def _unopened_waitpoints(self) -> list[NewWaitpoint]:
        """Return the waitpoints that only a suspend would open.

        Other code than steps often reaches its own wait soon. So wait for the second check before opening waitpoints
        beside such code.
        """
        bindings = [
            binding
            for wait, branch in self.waiting.items()
            if not branch.is_dropped and (self._run.in_flight or wait.is_parked)
            for binding in wait.bindings()
            if isinstance(binding, NewWaitpoint) and binding.key not in self.opened
        ]
        return list({binding.key: binding for binding in bindings}.values())

    def note_opened(self, waitpoints: Iterable[OpenWaitpoint]) -> None:
        """Note waitpoints that are open before a suspend binds them."""
        self.opened.update({waitpoint.key: waitpoint.id for waitpoint in waitpoints})

    async def close_opened(self, keys: Sequence[str], reason: str) -> list[str]:
        """Close the waitpoints that the run opened, because their wait has ended. Return the keys of the others."""
        others = [key for key in keys if key not in self.opened]
        for id_ in [self.opened.pop(key) for key in keys if key in self.opened]:
            close = partial(self._run.engine.waitpoints.close, id_, reason, principal="program")
            with suppress(FlowFabricError):
                await retry_while_owned(self._run, close, needs_lease=False)
        return others

    def _schedule_timer(self) -> None:
        """Free the threads of waiting branches, and schedule the next check while other branches are active.

        The next check runs at the earliest due time, or after a fixed pause if that is sooner.
        """
        leave_threads(self.waiting.values())
        for wait in self.waiting:
            wait.is_parked = True
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
        """Resume the branches whose waits have ended. Return False if no wait has ended and no signal was skipped."""
        waits, now = list(self.waiting), self._run.now()
        # A signal that was accepted before the due time still ends its wait, so read signals before a wait times out.
        read = read or any(wait.condition() is not None and wait.is_due(now) for wait in waits)
        reader = await read_waits(self._run, waits) if read else None
        now = now if reader is None else max(reader.snapshot.now, self._run.now())
        any_ended = False
        for wait in waits:
            verdict = None if reader is None else await self._find_verdict(wait, reader)
            if (branch := self._branch_to_end(wait)) is None:
                continue
            verdict = wait.find_end(verdict, now)
            if verdict is not None:
                any_ended = True
                if branch.race is not None and not is_bad_end(verdict):
                    branch.race.has_winner = True
                self.resolve(wait, verdict)
        has_skipped = await skip_unreadable(self._run, waits)
        return any_ended or has_skipped

    async def _find_verdict(self, wait: Wait, reader: WaitReader) -> Verdict | None:
        """Return how the wait has ended. Read more signals if the known ones do not end it."""
        verdict = None
        while self._branch_to_end(wait) is not None:
            verdict = wait.find_verdict(reader.snapshot)
            if isinstance(verdict, SignalsArrived | ChildEnded) or not await reader.read_more(wait.keys()):
                break
        return verdict

    def _branch_to_end(self, wait: Wait) -> Branch | None:
        """Return the branch of an open wait. A loser of a race must not use signals, so return None for its waits."""
        branch = self.waiting.get(wait)
        is_lost = branch is None or branch.is_dropped or (branch.race is not None and branch.race.has_winner)
        return None if is_lost else branch

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
