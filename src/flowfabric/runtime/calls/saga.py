"""Sagas: blocks whose steps are undone, newest first, if the block fails or a cancellation is requested."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from flowfabric.core.executions.requests import StepStatus
from flowfabric.runtime.branch import Branch, require_branch
from flowfabric.runtime.calls.step import step
from flowfabric.runtime.journal import RecordedFailure
from flowfabric.runtime.results import failure_of
from flowfabric.runtime.run import is_final
from flowfabric.values import failures, guards
from flowfabric.values.aliases import P
from flowfabric.values.errors import CancelRequested


class SagaRecord:
    """The record of the failure that makes a saga run its compensations.

    Steps inside the block stay recorded as done after they were undone, so a retry of the block is not possible. If no
    other record contains the failure, it is recorded before any step is undone. A later run then raises the recorded
    failure even if the failure does not happen again.
    """

    def __init__(self, branch: Branch) -> None:
        self._branch, self._scope = branch, branch.scope
        self._call_id = self._scope.unordered(self._scope.label("saga"), "saga")
        self._record = branch.run.calls.journal.get(self._call_id.path)
        self._halt: RecordedFailure | None = None
        if self._record is not None:
            self._halt = RecordedFailure(self._record.facts["calls"], self._restore_failure)
            self._scope.failures.append(self._halt)

    def close(self) -> None:
        """End the block, so that calls after it do not raise the recorded failure."""
        if self._halt is not None:
            self._scope.failures.remove(self._halt)

    async def find_cause(self, error: BaseException | None, *, is_needed: bool) -> BaseException | None:
        """Return the new or recorded failure for which the block must be undone, or None if it must not be undone.

        `is_needed` is True if there are compensations to run.
        """
        if error is None:
            return None if self._record is None else self._restore_failure()
        if is_needed and guards.is_a(error, Exception):
            await self._record_failure(error)
        return error

    async def _record_failure(self, error: BaseException) -> None:
        run = self._branch.run
        raises = run.task.settings.raises
        if self._record is None and not is_final(error, raises):
            document = failures.to_json(failures.error_info(error)) | (failures.encode_declared(error, raises) or {})
            calls = self._scope.number
            await run.record_writer.write(self._call_id.record(StepStatus.FAILED, calls=calls, error=document))
        guards.mark_final(error)

    def _restore_failure(self) -> Exception:
        assert self._record is not None, "called only if there is a record"
        return failure_of(self._record, self._branch.run.task.settings.raises)


class Compensations:
    """The functions that undo a saga's steps, in the order in which they were added."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], Any]] = []

    def add(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Register a function that is called as a step if the saga is undone."""
        self._calls.append(lambda: step(fn, *args, **kwargs))

    @property
    def is_needed(self) -> bool:
        """True if there is something to undo."""
        return bool(self._calls)

    async def run_all(self) -> list[Exception]:
        """Run the compensations, newest first, and return the errors of the failed ones."""
        failed: list[Exception] = []
        while self._calls:
            try:
                await self._calls.pop()()
            except Exception as error:
                failed.append(error)
        return failed


class Saga:
    """A block whose steps are undone if it ends with a failure or a request to cancel, but not by a suspension."""

    def __init__(self) -> None:
        self._compensations = Compensations()
        self._record: SagaRecord | None = None

    async def __aenter__(self) -> Compensations:
        self._record = SagaRecord(require_branch("saga"))
        return self._compensations

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        record, is_needed = self._record, self._compensations.is_needed
        assert record is not None, "`__aenter__` runs before `__aexit__`"
        record.close()
        if error is not None and not guards.is_a(error, Exception, CancelRequested):
            return
        cause = await record.find_cause(error, is_needed=is_needed)
        if cause is None:
            return
        failed = await self._compensations.run_all()
        if failed:
            raise BaseExceptionGroup("not everything could be undone", [cause, *failed])
        if cause is not error:
            raise cause


def saga() -> Saga:
    """Open a saga: `async with saga() as undo`. After each step, call `undo.add` with a function that undoes it."""
    return Saga()
