"""Children: executions that a task submits, and the ends of executions that it waits for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from flowfabric.core import limits
from flowfabric.core.graph import ChildSubmission
from flowfabric.core.ids import derived_id
from flowfabric.core.requests import StepStatus
from flowfabric.core.states import State
from flowfabric.core.views import Outcome
from flowfabric.sdk import results
from flowfabric.sdk.aliases import Durable, Duration
from flowfabric.sdk.digests import arguments_digest
from flowfabric.sdk.durable import DurableCall, here
from flowfabric.sdk.ending import FINAL_MARK
from flowfabric.sdk.giving_up import look
from flowfabric.sdk.handles import Handle
from flowfabric.sdk.journal import Record
from flowfabric.sdk.parking import ChildEnded, ChildWait, Due
from flowfabric.sdk.records import Cancelled, Completed, Expired, Skipped, TimedOut
from flowfabric.sdk.units import Unit, require_unit

if TYPE_CHECKING:
    from flowfabric.sdk.tasks import Task

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]


def submit_child(task: Task[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Durable[Any]:
    """Stores a child and its record in one commit; every later run finds the same child."""
    return SubmitChild(require_unit("submit"), task, (args, kwargs))


def run_child(task: Task[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Durable[Any]:
    """Stores a child and waits for its result."""
    return RunChild(require_unit("run"), task, (args, kwargs))


def await_result(handle: Handle[Any], timeout: Duration | None) -> Durable[Any]:
    """Waits for the result of an execution."""
    return AwaitResult(require_unit("result"), handle, timeout)


def await_outcome(handle: Handle[Any], timeout: Duration | None) -> Durable[Any]:
    """Waits for the end of an execution, whatever it is."""
    return AwaitOutcome(require_unit("outcome"), handle, timeout)


class SubmitChild(DurableCall[Any]):
    """A child that is submitted."""

    verb = "submit"
    task: Task[..., Any] | None

    def __init__(self, unit: Unit, task: Task[..., Any], arguments: Arguments) -> None:
        digest = None if unit.run.app.arguments == "off" else arguments_digest(*arguments)
        self.submission = task.submission(*arguments)
        super().__init__(unit, f"{self.verb}:{task.base}", self.verb, key=task.called.key, digest=digest)
        self.task, self.is_detached = task.newest, task.called.detached

    @property
    def child_id(self) -> UUID:
        """The id of the child, which follows from this execution and the path."""
        lease = self.run.lease
        return derived_id(lease.execution_id, "child", str(lease.generation), self.path)

    def replayed(self, record: Record) -> Any:
        return Handle(self.run.app, UUID(record.facts["child"]), self.task)

    async def fresh(self) -> Any:
        await self._submit(StepStatus.OK)
        return Handle(self.run.app, self.child_id, self.task)

    async def _submit(self, status: StepStatus) -> None:
        child = ChildSubmission(self.path, self.submission, detached=self.is_detached)
        await self.run.commits.submit(child, self.made.record(status, child=str(self.child_id)))


class _Awaits(DurableCall[Any]):
    """A wait for the end of an execution, as it is recorded and read again."""

    task: Task[..., Any] | None

    async def ended(self, id_: UUID, due: datetime | None, *, is_old: bool) -> Record:
        """Waits for the end, and records it with the next commit."""
        verdict = await self.park(ChildWait(self, id_, due, is_old=is_old))
        match verdict:
            case ChildEnded(outcome=outcome):
                record = self._end_record(id_, outcome)
            case Due(at=at):
                record = self.made.record(StepStatus.OK, child=str(id_), timed_out=at.isoformat())
            case _:
                raise AssertionError("an execution is waited for by its end or by time")
        self.run.commits.ride(record)
        return record

    def _end_record(self, id_: UUID, outcome: Outcome) -> Record:
        facts: dict[str, Any] = {"child": str(id_), "ended": outcome.state.value}
        if outcome.state is State.COMPLETED:
            return self.made.record(StepStatus.OK, value=outcome.result or b"null", **facts)
        failure = outcome.failure
        if failure is not None:
            facts["failure"] = {"message": failure.message, "category": failure.category}
            facts["detail"] = _document(failure.detail)
        facts["reason"] = outcome.cancel_reason or (failure.message if failure else "")
        return self.made.record(StepStatus.FAILED, **facts)

    def end_of(self, record: Record) -> results.End | TimedOut:
        """How the execution ended, as it is recorded."""
        facts = record.facts
        if "timed_out" in facts:
            return TimedOut(datetime.fromisoformat(facts["timed_out"]))
        match State(facts["ended"]):
            case State.COMPLETED:
                form = self.task.result_form if self.task is not None else results.untyped_form()
                return results.End(Completed(form.restore(record.value)))
            case State.CANCELLED:
                return results.End(Cancelled(facts["reason"]))
            case State.EXPIRED:
                return results.End(Expired(facts["reason"]))
            case State.SKIPPED:
                return results.End(Skipped(facts["reason"]))
        return results.recorded_failure(facts.get("failure"), facts.get("detail"), self.task)

    def value_of(self, record: Record) -> Any:
        """The result, or the error that stands for another end."""
        end = self.end_of(record)
        if isinstance(end, TimedOut):
            late = TimeoutError(f"{self.path} has not ended by {end.at.isoformat()}")
            setattr(late, FINAL_MARK, True)
            raise late
        try:
            return end.value()
        except Exception as error:
            setattr(error, FINAL_MARK, True)
            raise


class RunChild(SubmitChild, _Awaits):
    """A child that is submitted and waited for."""

    verb = "run"

    def replayed(self, record: Record) -> Any:
        return self.value_of(record)

    async def fresh(self) -> Any:
        unit, former = here(self), await self._former()
        child = former or self.child_id
        unit.awaits(child)
        if former is None:
            await self._submit(StepStatus.OPEN)
        record = await self.ended(child, None, is_old=former is not None)
        unit.has_awaited(child)
        return self.value_of(record)

    async def _former(self) -> UUID | None:
        """The child that is recorded. One that a replay has kept may have been cancelled at the end of its generation:
        then it counts as never submitted."""
        child = None if self.record is None else UUID(self.record.facts["child"])
        if child is None or child == self.child_id:
            return child
        ended = (await look(self.run, {}, [child])).children.get(child)
        return None if ended is not None and ended.state is State.CANCELLED else child


class AwaitOutcome(_Awaits):
    """The end of an execution by its handle."""

    def __init__(self, unit: Unit, handle: Handle[Any], timeout: Duration | None) -> None:
        self.task, self.id = handle.task, handle.id
        self.timeout: timedelta | None = None if timeout is None else limits.duration(timeout, "timeout")
        kind = handle.task.base if handle.task is not None else "execution"
        super().__init__(unit, f"result:{kind}", "result", digest=str(handle.id))

    async def fresh(self) -> Any:
        is_old, due = self.record is not None, self._due()
        return self.replayed(await self.ended(self.id, due, is_old=is_old or due is None))

    def _due(self) -> datetime | None:
        if self.record is not None:
            due = self.record.facts.get("due")
            return None if due is None else datetime.fromisoformat(due)
        moment = None if self.timeout is None else self.run.now() + self.timeout
        facts: dict[str, Any] = {} if moment is None else {"due": moment.isoformat()}
        self.run.commits.ride(self.made.record(StepStatus.OPEN, child=str(self.id), **facts))
        return moment

    def replayed(self, record: Record) -> Any:
        end = self.end_of(record)
        return end if isinstance(end, TimedOut) else end.outcome


class AwaitResult(AwaitOutcome):
    """The result of an execution by its handle."""

    def replayed(self, record: Record) -> Any:
        return self.value_of(record)


def _document(detail: bytes | None) -> Any:
    try:
        return json.loads(detail or b"null")
    except ValueError:
        return None
