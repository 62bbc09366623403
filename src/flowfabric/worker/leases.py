"""The leases that a worker holds, and their renewal.

    add ──► unstarted ──start──► started ──remove──► (the run has ended)
                │                   │
                │ after a third     │ after a third of the TTL since the last renewal: due for renewal
                │ of the TTL        │ after the whole TTL: lost
                ▼                   ▼
             released              lost

The worker's loop and the renewal thread share the lease table. The one that removes a lease must also release it
or report its loss. The TTL of a lease is measured from before the request to the store, so the lease counts as lost
here before it expires in the store. Only the local clock decides when a lease is lost, so an unavailable store cannot
hide the loss. A renewal is tried up to four times per TTL.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from uuid import UUID

from flowfabric.core.errors import FlowFabricError, Refused, Unavailable, is_permanent
from flowfabric.core.executions.outcomes import Lease, Renewed
from flowfabric.core.executions.records import Fence
from flowfabric.core.validation import MAX_BATCH
from flowfabric.engine.engine import Engine
from flowfabric.worker.release import release_leases

RENEW_AFTER = 1 / 3
START_WITHIN = 1 / 3


@dataclass(slots=True)
class _Held:
    fence: Fence
    ttl_s: float
    taken_at: float
    extended_at: float
    is_started: bool = False


class LeaseTable:
    """The held leases. Every method may be called from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._held: dict[UUID, _Held] = {}

    def lease_ids(self) -> set[UUID]:
        """Return the ids of the held leases."""
        with self._lock:
            return set(self._held)

    def add(self, leases: Sequence[Lease], requested_at: float) -> list[Lease]:
        """Add leases that were requested at `requested_at`, and return the leases that were not in the table."""
        with self._lock:
            fresh = [lease for lease in leases if lease.fence.lease_id not in self._held]
            for lease in fresh:
                held = _Held(lease.fence, lease.ttl.total_seconds(), requested_at, requested_at)
                self._held[lease.fence.lease_id] = held
        return fresh

    def start(self, lease_id: UUID) -> bool:
        """Mark a lease as started. Return False if the worker no longer holds the lease."""
        with self._lock:
            held = self._held.get(lease_id)
            if held is not None:
                held.is_started = True
            return held is not None

    def remove(self, lease_id: UUID) -> bool:
        """Remove a lease. Return False if it was not in the table."""
        with self._lock:
            return self._held.pop(lease_id, None) is not None

    def take_lost(self) -> list[Fence]:
        """Remove and return the leases whose TTL has passed without a renewal."""
        now = self._clock()
        return self._take(lambda held: held.extended_at + held.ttl_s <= now)

    def take_idle(self) -> list[Fence]:
        """Remove and return the leases that were not started in time, so that another worker can have them."""
        now = self._clock()
        return self._take(lambda held: not held.is_started and held.taken_at + held.ttl_s * START_WITHIN <= now)

    def due_for_renewal(self) -> list[Fence]:
        """Return the leases that are due for renewal, the most urgent first."""
        now = self._clock()
        with self._lock:
            due = [held for held in self._held.values() if held.extended_at + held.ttl_s * RENEW_AFTER <= now]
        return [held.fence for held in sorted(due, key=lambda held: held.extended_at + held.ttl_s)]

    def extend(self, lease_id: UUID, requested_at: float) -> bool:
        """Record a renewal that was requested at `requested_at`. Return False if the lease is no longer held."""
        with self._lock:
            held = self._held.get(lease_id)
            if held is not None:
                held.extended_at = requested_at
            return held is not None

    def next_loss_in(self, limit_s: float) -> float:
        """Return the seconds until the first lease is lost, at most `limit_s`."""
        with self._lock:
            ends = [held.extended_at + held.ttl_s for held in self._held.values()]
        return max(0.0, min([limit_s, *(end - self._clock() for end in ends)]))

    def _take(self, matches: Callable[[_Held], bool]) -> list[Fence]:
        with self._lock:
            fences = [held.fence for held in self._held.values() if matches(held)]
            for fence in fences:
                del self._held[fence.lease_id]
        return fences


_log = logging.getLogger("flowfabric.worker")
_RENEWALS_PER_TTL = 6
_LOSS_CHECKS_PER_TTL = 12
_TIMEOUT_PER_TTL = 1 / 3
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

    async def run(self) -> None:
        """Renew leases and detect lost ones until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_losses())
            group.create_task(self._renew())

    async def renew_once(self, engine: Engine) -> RenewalReport:
        """Release the leases that were not started in time, renew the due leases in batches, and return the report."""
        report = RenewalReport()
        idle = self._lease_table.take_idle()
        if idle:
            report.released += idle
            await release_leases(engine, idle)
        due = self._lease_table.due_for_renewal()
        for start in range(0, len(due), MAX_BATCH):
            await self._renew_batch(engine, due[start : start + MAX_BATCH], report)
        return report

    async def _renew(self) -> None:
        """Renew leases in rounds. After an error, open a new engine."""
        while True:
            try:
                async with self._open_engine() as engine:
                    while True:
                        self._report(await self.renew_once(engine))
                        await asyncio.sleep(self._pause_s())
            except FlowFabricError as error:
                if is_permanent(error):
                    return  # The worker stops, and reports why.
                self._note_failure(error)
            except Exception:
                _log.exception("Lease renewal failed unexpectedly, retrying")
            await asyncio.sleep(self._pause_s() * random.uniform(0.5, 1.0))

    async def _renew_batch(self, engine: Engine, fences: Sequence[Fence], report: RenewalReport) -> None:
        requested_at = time.monotonic()
        try:
            async with asyncio.timeout(self._ttl_s * _TIMEOUT_PER_TTL):
                outcomes = await engine.leases.renew_many(fences)
        except (Unavailable, TimeoutError) as error:
            if is_permanent(error):
                raise
            self._note_failure(error)
            return
        for fence, outcome in zip(fences, outcomes, strict=True):
            self._note_outcome(fence, outcome, requested_at, report)

    def _note_outcome(
        self, fence: Fence, outcome: Renewed | FlowFabricError, requested_at: float, report: RenewalReport
    ) -> None:
        if isinstance(outcome, Unavailable):
            if is_permanent(outcome):
                raise outcome
            self._note_failure(outcome)
        elif isinstance(outcome, FlowFabricError):
            if self._lease_table.remove(fence.lease_id):
                report.lost[fence] = outcome
        elif self._lease_table.extend(fence.lease_id, requested_at):
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
        return self._ttl_s / _RENEWALS_PER_TTL

    def _note_failure(self, error: Exception) -> None:
        if not self._is_failing:
            self._is_failing = True
            _log.warning("Lease renewal failed, retrying: %s", str(error) or "the store did not respond in time")


def _expired(fence: Fence) -> FlowFabricError:
    message = "the lease expired because it could not be renewed"
    return Refused("lease_expired", message, execution_id=fence.execution_id, epoch=fence.epoch)
