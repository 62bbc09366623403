"""The calls that a run makes, held against its journal."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn

from flowfabric.core.errors import InvalidRequest
from flowfabric.core.requests import StepStatus
from flowfabric.sdk.accidents import Accidents
from flowfabric.sdk.bodies import drop
from flowfabric.sdk.errors import CancelRequested, Unwind
from flowfabric.sdk.journal import Journal, Made, Mismatch, Record, Scope
from flowfabric.sdk.units import UNIT, Unit

if TYPE_CHECKING:
    from flowfabric.sdk.durable import DurableCall
    from flowfabric.sdk.run import Run

LOG = logging.getLogger("flowfabric")
_MANY_RECORDS = 1_000
_MOST_RECORDS = 10_000
_MOST_TOLD = 100
_ADVICE = "use poll for polling, continue_with for endless work, children for many parts"


class Calls:
    """Gives each call its identity and its record, and stops the run where it must not go on."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.journal = Journal()
        self.made: list[DurableCall[Any]] = []
        self.accidents = Accidents()
        self.consumed: dict[str, int] = {}
        self.is_live = False
        self._is_repeat = False
        self.cancel_delivered = False
        self.is_cut_off = False
        self._told: dict[Unit | None, int] = {}
        self._has_warned = False
        self._has_said = False

    @property
    def is_replaying(self) -> bool:
        """True until the first call that an earlier run has not recorded."""
        return self._is_repeat and not self.is_live

    def remember(self, record: Record) -> None:
        """Takes a record over from an earlier run."""
        self.journal.add(record)
        # The inputs of a member, and the account of signals that it continues with, are nothing that was called.
        self._is_repeat = self._is_repeat or record.kind not in ("inputs", "signals")
        self._has_warned = len(self.journal) > _MANY_RECORDS
        if record.facts.get("cancel_requested"):
            self.cancel_delivered = True
        for name, seq in record.facts.get("used", {}).items():
            self.consumed[name] = max(seq, self.consumed.get(name, 0))

    def make(self, scope: Scope, made: Made) -> tuple[Made, Record | None]:
        """Holds a call against the journal; if it does not fit, nothing runs any more."""
        try:
            record = self.journal.expect(scope, made, check_digest=self._run.app.arguments == "hold")
        except Mismatch as mismatch:
            self.diverge(mismatch.report)
        if record is None:
            self._check_number()
        if record is None or not record.is_final:
            self.is_live = True
        elif self._run.app.arguments == "warn" and record.digest != made.digest:
            LOG.warning("%s has other arguments than were recorded", made.path)
        return made, record

    def diverge(self, report: str) -> NoReturn:
        """Holds the execution: the code no longer matches what was recorded."""
        run = self._run
        run.divergence = f"{run.task.name} {run.lease.execution_id}: {report}"
        run.unwind()
        raise Unwind

    def check_alive(self, unit: Unit) -> None:
        """Raises once nothing durable may happen any more in this run, or in this branch of it."""
        self.check_over()
        if self._run.is_draining:
            # Steps in flight finish and are recorded first.
            if not self._run.in_flight:
                self._run.unwind()
            raise self.tell(unit)
        if unit.is_dropped:
            raise Unwind

    def check_over(self) -> None:
        """Raises once the lease is given up or lost."""
        if self._run.is_over:
            raise self.tell(UNIT.get())

    @property
    def has_told(self) -> bool:
        """True once some of the code was told to leave."""
        return bool(self._told)

    def tell(self, unit: Unit | None) -> Unwind:
        """What is raised in a branch so that it is left; code that swallows it for ever is cut off."""
        # Each branch is told once at least, and there may be many.
        times = self._told[unit] = self._told.get(unit, 0) + 1
        if times >= _MOST_TOLD:
            self.is_cut_off = True
            LOG.error("%s swallows Unwind for ever and is dropped; let BaseException pass", self._run.task.name)
            drop(self._run)
        elif self._told[unit] > 1 and unit is not None and _goes_on(unit):
            self.note_swallowed()
        return self._run.reason_to_leave()

    def note_swallowed(self) -> None:
        """Warns, once, of code that goes on after it was told to leave."""
        if not self._has_said:
            self._has_said = True
            name = self._run.task.name
            LOG.warning("%s swallowed Unwind, and what it came to is ignored; let BaseException pass", name)

    def check_cancel(self, call: DurableCall[Any]) -> None:
        """Delivers a request to cancel, once, at the first call that the journal does not answer."""
        if self._run.cancel_due_at is not None and not self.cancel_delivered:
            self.deliver_cancel(call)
            raise CancelRequested

    def deliver_cancel(self, call: DurableCall[Any]) -> None:
        """Records that the request was delivered at this call, so that every later run repeats it there."""
        self.cancel_delivered = True
        self._run.commits.ride(call.made.record(StepStatus.CANCELLED, cancel_requested=True))

    def never_awaited(self) -> InvalidRequest | None:
        """What was made and left lying. Branches that were ended, or have failed, could not come to it."""
        paths = tuple(call.path for call in self.made if not call.is_awaited and not call.unit.is_dropped)
        if not paths:
            return None
        return InvalidRequest("never_awaited", f"made but never awaited: {', '.join(paths)}", paths=paths)

    def _check_number(self) -> None:
        number, task = len(self.journal), self._run.task.name
        if number >= _MANY_RECORDS and not self._has_warned:
            self._has_warned = True
            LOG.warning("%s %s has %d records; %s", task, self._run.lease.execution_id, number, _ADVICE)
        if number >= _MOST_RECORDS:
            message = f"it has {number} records, the limit is {_MOST_RECORDS}; {_ADVICE}"
            raise InvalidRequest("too_many_steps", message, limit=_MOST_RECORDS)


def _goes_on(unit: Unit) -> bool:
    """True in the branch's own code, unless it only cleans up while it is being left."""
    is_own = threading.get_ident() == unit.thread if unit.is_plain else asyncio.current_task() is unit.task
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, Unwind):
        error = error.__context__
    return is_own and error is None
