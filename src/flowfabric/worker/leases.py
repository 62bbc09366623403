"""The leases that a worker holds, and their renewal.

    add ──► unstarted ──start──► started ──────────────► the run has ended ──► the store has confirmed the end
                │                   │                                      ▲
                │ after a third     │ after a third of the TTL since the   │ the code has stopped,
                │ of the TTL        │ last renewal: due for renewal        │ and the worker releases the lease
                ▼                   │ after the whole TTL ──► lost ────────┘
             released

The worker's loop and the renewal thread share the lease table. The one that removes a lease must also release it or
report its loss. The TTL of a lease is measured from before the request to the store, so the lease counts as lost here
before it expires in the store. Only the local clock decides when a lease is lost, so an unavailable store cannot hide
the loss. This clock also runs while the system sleeps. While a transaction of this worker has locked the row of a
lease, the lease cannot be lost.

A renewal is tried up to four times per TTL, even if an earlier try is still on its way. It never waits for a row lock.
If another transaction has locked the row, the lease is busy, and is tried more often. Each lease has its own outcome.

After a hint that others ended a lease of this worker or requested a cancel, the renewer reads its leases once, and
renews only the changed ones. The result of that renewal reaches the run like every other. A hint may name no lease, as
on SQLite, where any commit of another process is such a hint. So a read, not a renewal, decides which leases changed.

**One fence, one run.** The store may still list a lease that is lost here, because only the replies to its renewals
were lost. The table remembers every lease under which code was started, and never accepts or starts it again. It
forgets a lease some time after the store has confirmed its end. It still remembers the last ones, because a standby
that takes over without the newest transactions lists them again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from uuid import UUID

from flowfabric.core.errors import FlowFabricError, Refused, Unavailable, is_permanent
from flowfabric.core.executions.outcomes import Lease, Renewed
from flowfabric.core.executions.records import Fence
from flowfabric.core.executions.views import LeaseSnapshot
from flowfabric.core.validation import MAX_BATCH
from flowfabric.engine.engine import Engine
from flowfabric.engine.lease_locks import lease_time
from flowfabric.worker.release import release_leases

RENEW_AFTER = 1 / 3
START_WITHIN = 1 / 3
_MAX_ENDED = 4_096


@dataclass(slots=True)
class _Held:
    fence: Fence
    ttl_s: float
    taken_at: float
    extended_at: float
    cancel_due_at: datetime | None = None
    is_started: bool = False
    is_removed: bool = False
    locks: int = 0

    def is_held_at(self, clock: Callable[[], float]) -> bool:
        """Return True if the lease is in the table, and it is locked or its TTL has not passed.

        Every durable call asks this, so it takes no lock. It reads `locks` before `extended_at`; see `lock_ended`.
        """
        return not self.is_removed and (self.locks > 0 or clock() < self.extended_at + self.ttl_s)


class LeaseTable:
    """The held leases. Every method may be called from any thread."""

    def __init__(self, clock: Callable[[], float] = lease_time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._held: dict[UUID, _Held] = {}
        # The leases that must not start again, and those of them that have ended, in the order of their ends.
        self._started: set[UUID] = set()
        self._ended: deque[UUID] = deque()

    def lease_ids(self) -> set[UUID]:
        """Return the ids of the held leases."""
        with self._lock:
            return set(self._held)

    def add(self, leases: Sequence[Lease], requested_at: float) -> list[Lease]:
        """Add leases that were requested at `requested_at`, and return those that were added.

        Leases that are in the table, or under which code was started before, are not added.
        """
        with self._lock:
            fresh = [lease for lease in leases if self._is_new(lease.fence.lease_id)]
            for lease in fresh:
                held = _Held(lease.fence, lease.ttl.total_seconds(), requested_at, requested_at, lease.cancel_due_at)
                self._held[lease.fence.lease_id] = held
        return fresh

    def start(self, lease_id: UUID) -> bool:
        """Mark a lease as started. Return False if it was started before, or if the worker no longer holds it."""
        with self._lock:
            held = self._held.get(lease_id)
            if held is None or lease_id in self._started:
                return False
            held.is_started = True
            self._started.add(lease_id)
            return True

    def split(self, leases: Sequence[Lease]) -> tuple[list[Lease], list[Lease]]:
        """Return the leases under which no code was started, and the leases under which code was started."""
        new, started = list[Lease](), list[Lease]()
        with self._lock:
            for lease in leases:
                id_ = lease.fence.lease_id
                (started if id_ in self._started else new).append(lease)
        return new, started

    def is_held(self, lease_id: UUID) -> bool:
        """Return True if the worker holds the lease, and it is locked or its TTL has not passed."""
        held = self._held.get(lease_id)
        return held is not None and held.is_held_at(self._clock)

    def check_of(self, lease_id: UUID) -> Callable[[], bool]:
        """Return a function that returns what `is_held` returns for this lease, without a lookup."""
        held = self._held.get(lease_id)
        return _never_held if held is None else partial(held.is_held_at, self._clock)

    def confirm_end(self, lease_id: UUID) -> None:
        """Remove a lease whose end the store has confirmed."""
        with self._lock:
            held = self._pop(lease_id)
            if held is None or not held.is_started:
                self._started.add(lease_id)
            self._ended.append(lease_id)
            if len(self._ended) > _MAX_ENDED:
                self._started.discard(self._ended.popleft())

    def remove(self, lease_id: UUID) -> bool:
        """Remove a lease. Return False if it was not in the table."""
        with self._lock:
            return self._pop(lease_id) is not None

    def take_lost(self) -> list[Fence]:
        """Remove and return the leases whose TTL has passed without a renewal.

        A lease whose row a transaction of this worker has locked is not lost: no other process can end it now.
        """
        now = self._clock()
        return self._take(lambda held: not held.locks and held.extended_at + held.ttl_s <= now)

    def take_idle(self) -> list[Fence]:
        """Remove and return the leases that were not started in time, so that another worker can have them."""
        now = self._clock()
        return self._take(lambda held: not held.is_started and held.taken_at + held.ttl_s * START_WITHIN <= now)

    def due_for_renewal(self, early_s: float = 0.0) -> list[Fence]:
        """Return the leases that are due for renewal now or within `early_s`, the most urgent first.

        A lease whose TTL has passed is lost, even if the store would still renew it.
        """
        now = self._clock()
        with self._lock:
            due = [held for held in self._held.values() if _is_due(held, now, early_s)]
        return [held.fence for held in sorted(due, key=lambda held: held.extended_at + held.ttl_s)]

    def find_changed(self, snapshots: Mapping[UUID, LeaseSnapshot], fences: Sequence[Fence]) -> list[Fence]:
        """Return those of `fences` whose lease has ended in the store, or whose requested cancel is not known yet."""
        with self._lock:
            held = {fence: self._held.get(fence.lease_id) for fence in fences}
        return [
            fence
            for fence, lease in held.items()
            if lease is not None
            and snapshots.get(fence.execution_id) != LeaseSnapshot(fence.lease_id, lease.cancel_due_at)
        ]

    def fences(self) -> list[Fence]:
        """Return the fences of the held leases."""
        with self._lock:
            return [held.fence for held in self._held.values()]

    def extend(self, lease_id: UUID, requested_at: float, cancel_due_at: datetime | None = None) -> bool:
        """Record a renewal that was requested at `requested_at`. Return False if the lease is no longer held."""
        with self._lock:
            held = self._held.get(lease_id)
            if held is not None:
                held.cancel_due_at = cancel_due_at
                # Renewals may overlap, so an earlier request may be acknowledged after a later one.
                held.extended_at = max(held.extended_at, requested_at)
            return held is not None

    def lock_began(self, lease_id: UUID) -> None:
        """Note that a transaction of this worker has locked the row of the lease."""
        with self._lock:
            if (held := self._held.get(lease_id)) is not None:
                held.locks += 1

    def lock_ended(self, lease_id: UUID, extended_at: float | None) -> None:
        """Note that such a transaction has ended. If it has committed, it extended the lease at `extended_at`."""
        with self._lock:
            if (held := self._held.get(lease_id)) is not None and held.locks:
                # In this order, because `is_held_at` reads both without the lock.
                held.extended_at = max(held.extended_at, extended_at or held.extended_at)
                held.locks -= 1

    def next_loss_in(self, limit_s: float) -> float:
        """Return the seconds until the first lease is lost, at most `limit_s`."""
        with self._lock:
            ends = [held.extended_at + held.ttl_s for held in self._held.values() if not held.locks]
        return max(0.0, min([limit_s, *(end - self._clock() for end in ends)]))

    def next_renewal_in(self, limit_s: float) -> float:
        """Return the seconds until the next lease becomes due for renewal, at most `limit_s`."""
        now = self._clock()
        with self._lock:
            dues = [held.extended_at + held.ttl_s * RENEW_AFTER - now for held in self._held.values()]
        return min([limit_s, *(due for due in dues if due > 0)])

    def _is_new(self, lease_id: UUID) -> bool:
        return not (lease_id in self._held or lease_id in self._started)

    def _take(self, matches: Callable[[_Held], bool]) -> list[Fence]:
        with self._lock:
            fences = [held.fence for held in self._held.values() if matches(held)]
            for fence in fences:
                self._pop(fence.lease_id)
        return fences

    def _pop(self, lease_id: UUID) -> _Held | None:
        held = self._held.pop(lease_id, None)
        if held is not None:
            held.is_removed = True
        return held


def _never_held() -> bool:
    return False


def _is_due(held: _Held, now: float, early_s: float) -> bool:
    is_lost = not held.locks and held.extended_at + held.ttl_s <= now
    return held.extended_at + held.ttl_s * RENEW_AFTER <= now + early_s and not is_lost


_log = logging.getLogger("flowfabric.worker")
_BUSY = "lease_busy"
_RENEWALS_PER_TTL = 6
_LOSS_CHECKS_PER_TTL = 12
_MAX_RENEWALS_PER_TTL = 24
_SLOW_RENEWALS_PER_TTL = 12
_MAX_IN_FLIGHT = 24
# Hints are collected for this long, so that many commits of other processes cost only a few reads.
_HINT_PAUSE_S = 0.1
OpenEngine = Callable[[], AbstractAsyncContextManager[Engine]]


@dataclass(slots=True)
class RenewalReport:
    """The leases that were lost, released and renewed in one round. The worker's loop receives this report."""

    lost: dict[Fence, FlowFabricError] = field(default_factory=dict)
    released: list[Fence] = field(default_factory=list)
    renewed: dict[Fence, Renewed] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.lost or self.released or self.renewed)


class LeaseRenewer:
    """Renews the leases of a table. It calls `on_report` in the event loop in which `run` runs."""

    def __init__(
        self, lease_table: LeaseTable, ttl_s: float, open_engine: OpenEngine, on_report: Callable[[RenewalReport], None]
    ) -> None:
        self._lease_table = lease_table
        self._ttl_s = ttl_s
        self._open_engine = open_engine
        self._on_report = on_report
        self._is_failing = False
        self._is_store_lost = False
        self._has_busy = False
        self._is_slow = False
        self._in_flight = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hinted = asyncio.Event()

    async def run(self) -> None:
        """Renew leases and detect lost ones until cancelled."""
        self._loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_losses())
            group.create_task(self._renew())

    def check_soon(self) -> None:
        """Look for leases that others ended or asked to stop, and renew these. Any thread may call this."""
        if self._loop is not None:
            with suppress(RuntimeError):  # The loop is closed, so no lease is renewed any longer.
                self._loop.call_soon_threadsafe(self._hinted.set)

    def start_round(self, engine: Engine, tasks: asyncio.TaskGroup) -> None:
        """Start to release the leases that were not started in time, and to renew the due leases in batches.

        Neither waits for the other. Leases are renewed again while an earlier renewal of them is still on its way. If
        the store is slow, they are renewed earlier.
        """
        idle = self._lease_table.take_idle()
        if idle:
            self._report(RenewalReport(released=idle))
            tasks.create_task(release_leases(engine, idle))
        early_s = self._ttl_s / _RENEWALS_PER_TTL if self._is_slow else 0.0
        due = self._lease_table.due_for_renewal(early_s)
        for start in range(0, len(due), MAX_BATCH):
            if self._in_flight < _MAX_IN_FLIGHT:
                self._in_flight += 1
                tasks.create_task(self._renew_batch(engine, due[start : start + MAX_BATCH]))

    async def _renew(self) -> None:
        """Renew leases in rounds. After an error, open a new engine, unless the store is lost for this process."""
        while not self._is_store_lost:
            try:
                async with self._open_engine() as engine, asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._watch_hints(engine))
                    while not self._is_store_lost:
                        self.start_round(engine, tasks)
                        await asyncio.sleep(self._pause_s())
            except FlowFabricError as error:
                self._note_failure(error)
            except Exception:
                _log.exception("Lease renewal failed unexpectedly, retrying")
            await asyncio.sleep(self._pause_s() * random.uniform(0.5, 1.0))

    async def _watch_hints(self, engine: Engine) -> None:
        while not self._is_store_lost:
            await self._hinted.wait()
            self._hinted.clear()
            try:
                await self._renew_changed(engine)
            except FlowFabricError as error:
                self._note_failure(error)
            await asyncio.sleep(_HINT_PAUSE_S)

    async def _renew_changed(self, engine: Engine) -> None:
        """Renew the leases that changed in the store. If some of them are busy, look again soon."""
        fences = self._lease_table.fences()
        for start in range(0, len(fences), MAX_BATCH):
            batch = fences[start : start + MAX_BATCH]
            snapshots = await engine.leases.peek([fence.execution_id for fence in batch])
            if changed := self._lease_table.find_changed(snapshots, batch):
                self._in_flight += 1
                await self._renew_batch(engine, changed)
                if self._lease_table.find_changed(snapshots, changed):
                    self._hinted.set()

    async def _renew_batch(self, engine: Engine, fences: Sequence[Fence]) -> None:
        """Renew leases and report the outcome. A reply after the whole TTL would be useless."""
        requested_at = lease_time()
        try:
            async with asyncio.timeout(self._ttl_s):
                outcomes = await engine.leases.renew_many(fences)
        except (FlowFabricError, TimeoutError) as error:
            self._note_failure(error)
            return
        finally:
            self._in_flight -= 1
            self._is_slow = lease_time() - requested_at > self._ttl_s / _SLOW_RENEWALS_PER_TTL
        report = RenewalReport()
        for fence, outcome in zip(fences, outcomes, strict=True):
            self._note_outcome(fence, outcome, requested_at, report)
        self._has_busy = any(isinstance(outcome, Unavailable) and outcome.code == _BUSY for outcome in outcomes)
        self._report(report)

    def _note_outcome(
        self, fence: Fence, outcome: Renewed | FlowFabricError, requested_at: float, report: RenewalReport
    ) -> None:
        if isinstance(outcome, Unavailable):
            # The row of a busy lease is locked. The store works, and the lease is renewed again in the next round.
            if outcome.code != _BUSY:
                self._note_failure(outcome)
        elif isinstance(outcome, FlowFabricError):
            if self._lease_table.remove(fence.lease_id):
                report.lost[fence] = outcome
        elif self._lease_table.extend(fence.lease_id, requested_at, outcome.cancel_due_at):
            self._is_failing = False
            report.renewed[fence] = outcome

    async def _watch_losses(self) -> None:
        while True:
            self._report(RenewalReport(lost={fence: _expired(fence) for fence in self._lease_table.take_lost()}))
            await asyncio.sleep(self._lease_table.next_loss_in(self._ttl_s / _LOSS_CHECKS_PER_TTL))

    def _report(self, report: RenewalReport) -> None:
        if report:
            self._on_report(report)

    def _pause_s(self) -> float:
        shortest_s = self._ttl_s / _MAX_RENEWALS_PER_TTL
        if self._has_busy:
            return shortest_s
        return max(shortest_s, self._lease_table.next_renewal_in(self._ttl_s / _RENEWALS_PER_TTL))

    def _note_failure(self, error: Exception) -> None:
        if is_permanent(error):
            self._is_store_lost = True  # The worker stops, and reports why.
        elif not self._is_failing:
            self._is_failing = True
            _log.warning("Lease renewal failed, retrying: %s", str(error) or "the store did not respond in time")


def _expired(fence: Fence) -> FlowFabricError:
    message = "the lease expired because it could not be renewed"
    return Refused("lease_expired", message, execution_id=fence.execution_id, epoch=fence.epoch)
