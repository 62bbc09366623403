"""Why a saga is undone. Its steps still say "booked" afterwards, so the failure that it was undone for is final; and if
it was an accident, which nothing else records, it is recorded before anything is undone: a later run that does not meet
it any more must come to the same."""

from __future__ import annotations

from flowfabric.core.requests import StepStatus
from flowfabric.sdk import failures
from flowfabric.sdk.ending import FINAL_MARK, is_final
from flowfabric.sdk.errors import CancelRequested
from flowfabric.sdk.journal import Halt, Record
from flowfabric.sdk.steps import failure_of
from flowfabric.sdk.units import Unit


class Undoing:
    """Whether the block of a saga is undone, in this run or by what an earlier one recorded."""

    def __init__(self, unit: Unit) -> None:
        self._unit, self._scope = unit, unit.scope
        self._made = self._scope.outside(self._scope.label("saga"), "saga")
        self._record = unit.run.calls.journal.get(self._made.path)
        self._halt: Halt | None = None
        if self._record is not None:
            self._halt = Halt(self._record.facts["calls"], self._recorded)
            self._scope.halts.append(self._halt)

    async def cause(self, error: BaseException | None, *, is_needed: bool) -> BaseException | None:
        """What the block is undone for, if it is: what it was left by, or what was recorded. `is_needed` if there is
        something to undo."""
        if self._halt is not None:
            self._scope.halts.remove(self._halt)
        if error is None:
            return None if self._record is None else self._recorded()
        if isinstance(error, CancelRequested):
            return error
        if not isinstance(error, Exception):
            return None
        if is_needed:
            await self._seal(error)
        return error

    async def _seal(self, error: Exception) -> None:
        run = self._unit.run
        raises = run.task.settings.raises
        if self._record is None and not is_final(error, raises):
            said = failures.to_json(failures.error_info(error)) | (failures.declared(error, raises) or {})
            calls = self._scope.number
            await run.commits.write(self._made.record(StepStatus.FAILED, calls=calls, error=said))
        setattr(error, FINAL_MARK, True)

    def _recorded(self) -> Exception:
        record = self._record
        assert isinstance(record, Record), "asked for only if there is one"
        return failure_of(record, self._unit.run.task.settings.raises)
