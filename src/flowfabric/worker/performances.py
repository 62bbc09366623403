"""What a worker works on: leases that wait for a slot, and those that are being performed.

An execution is never performed twice at once here. It may be claimed again while its former performance still cleans
up after a wait; the new lease then stands behind it, and is given back by the renewal if that takes too long.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from datetime import datetime
from typing import ParamSpec
from uuid import UUID

from flowfabric.core.errors import FlowFabricError, Refused
from flowfabric.core.outcomes import Lease, Renewed
from flowfabric.core.records import Fence
from flowfabric.engine.engine import Engine
from flowfabric.sdk.performing import Performance, Performer
from flowfabric.worker.giving_back import give_back
from flowfabric.worker.ledger import Ledger
from flowfabric.worker.renewal import Report
from flowfabric.worker.slots import Slots
from flowfabric.worker.unstarted import Unstarted

_log = logging.getLogger("flowfabric.worker")
# What breaks in an unexpected way would break again at once, here or elsewhere.
_BROKEN_PAUSE_S = 5.0
P = ParamSpec("P")


@dataclass(slots=True)
class _Underway:
    lease: Lease
    performance: Performance
    cancel_due_at: datetime | None
    task: asyncio.Task[None] | None = None


class Performances:
    """Starts leases as slots get free, and passes on what is told about them. It belongs to the worker's loop."""

    def __init__(self, engine: Engine, performer: Performer, slots: Slots, ledger: Ledger) -> None:
        self._engine = engine
        self._performer = performer
        self._slots = slots
        self._ledger = ledger
        self._unstarted = Unstarted()
        self._underway: dict[UUID, _Underway] = {}
        self._is_draining = False
        self._quiet = asyncio.Event()
        self._quiet.set()

    def take(self, leases: Sequence[Lease], asked_at: float) -> None:
        """Holds these leases from now on, and starts as many as there are slots."""
        self._unstarted.add(self._ledger.add(leases, asked_at))
        self._start_next()

    def hear(self, report: Report) -> None:
        """Passes on what the renewal found out."""
        if report.given_back:
            self._slots.slow_down()
        if report.given_back or report.lost:
            self._unstarted.drop({*report.lost, *report.given_back})
            self._start_next()
        for fence, error in report.lost.items():
            if underway := self._find(fence):
                _tell(underway.performance.lease_lost, error)
        for fence, renewed in report.renewed.items():
            if underway := self._find(fence):
                _pass_on(underway, renewed)

    def drain(self) -> list[Fence]:
        """Starts nothing more, and asks what runs to unwind; answers the leases that were not started."""
        self._is_draining = True
        for underway in list(self._underway.values()):
            _tell(underway.performance.drain)
        return self.take_unstarted()

    def take_unstarted(self) -> list[Fence]:
        """The leases that have not been started, which is up to the caller from now on."""
        return [fence for fence in self._unstarted.take_all() if self._ledger.remove(fence.lease_id)]

    @property
    def is_busy(self) -> bool:
        """True while something is being performed."""
        return bool(self._underway)

    async def finished(self) -> None:
        """Returns when nothing is being performed."""
        await self._quiet.wait()

    def abandon(self, error: FlowFabricError) -> list[Fence]:
        """Tells everything that still runs to stop; answers the leases that are to be given back for it."""
        left = list(self._underway.values())
        for underway in left:
            _log.warning("%s did not end in time and goes on elsewhere", _name(underway.lease))
            _tell(underway.performance.lease_lost, error)
        return [underway.lease.fence for underway in left if self._ledger.remove(underway.lease.fence.lease_id)]

    def cancel(self) -> list[asyncio.Task[None]]:
        """Cancels the tasks of whatever does not listen."""
        tasks = [underway.task for underway in self._underway.values() if underway.task is not None]
        for task in tasks:
            task.cancel()
        return tasks

    def _start_next(self) -> None:
        while self._unstarted and self._slots.is_free and not self._is_draining:
            lease = self._unstarted.next()
            if former := self._underway.get(lease.execution_id):
                self._unstarted.stand_behind(lease)
                self._end_former(former)
            elif self._ledger.start(lease.fence.lease_id):
                self._start(lease)
        self._slots.waiting = len(self._unstarted)
        self._slots.note_room()

    def _end_former(self, former: _Underway) -> None:
        """A newer lease proves that this one is over, even if its performance has not heard of that."""
        if self._ledger.remove(former.lease.fence.lease_id):
            _tell(former.performance.lease_lost, Refused("stale_lease", "the execution was claimed anew"))

    def _start(self, lease: Lease) -> None:
        self._slots.begin()
        self._quiet.clear()
        underway = _Underway(lease, _begin(self._performer, self._engine, lease), lease.cancel_due_at)
        self._underway[lease.execution_id] = underway
        # A run begins with nothing of the context in which it happened to be claimed.
        underway.task = asyncio.get_running_loop().create_task(self._perform(underway), context=Context())

    async def _perform(self, underway: _Underway) -> None:
        began = time.monotonic()
        try:
            await underway.performance.perform()
        except asyncio.CancelledError:
            if not self._is_draining:
                await self._put_off(underway.lease)
        except (Exception, SystemExit):
            await self._put_off(underway.lease)
        finally:
            self._leave(underway.lease, time.monotonic() - began)

    async def _put_off(self, lease: Lease) -> None:
        _log.exception("performing %s broke; it is tried again in %g s", _name(lease), _BROKEN_PAUSE_S)
        if self._ledger.remove(lease.fence.lease_id):
            await give_back(self._engine, [lease.fence], _BROKEN_PAUSE_S)

    def _leave(self, lease: Lease, seconds: float) -> None:
        self._ledger.remove(lease.fence.lease_id)
        del self._underway[lease.execution_id]
        self._slots.end(seconds)
        self._unstarted.step_forward(lease.execution_id)
        self._start_next()
        if not self._underway:
            self._quiet.set()

    def _find(self, fence: Fence) -> _Underway | None:
        underway = self._underway.get(fence.execution_id)
        return underway if underway is not None and underway.lease.fence == fence else None


def _begin(performer: Performer, engine: Engine, lease: Lease) -> Performance:
    try:
        return performer.begin(engine, lease)
    except Exception as error:
        return _NeverBegun(error)


class _NeverBegun:
    """Stands in for a performance that could not even be made."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def perform(self) -> None:
        raise self._error

    def lease_lost(self, error: FlowFabricError) -> None: ...
    def cancel_requested(self, due_at: datetime) -> None: ...
    def drain(self) -> None: ...
    def news(self) -> None: ...


def _pass_on(underway: _Underway, renewed: Renewed) -> None:
    due_at = renewed.cancel_due_at
    if due_at is not None and due_at != underway.cancel_due_at:
        underway.cancel_due_at = due_at
        _tell(underway.performance.cancel_requested, due_at)
    _tell(underway.performance.news)


def _tell(hear: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """A performance that cannot hear must not keep others from hearing."""
    try:
        hear(*args, **kwargs)
    except Exception:
        _log.exception("a performance broke when it was told something")


def _name(lease: Lease) -> str:
    return f"{lease.kind} {lease.execution_id}"
