"""Children, which are executions that a task submits, and waits until executions end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.executions.requests import StepStatus
from flowfabric.core.executions.states import State
from flowfabric.core.executions.views import Outcome
from flowfabric.core.flows.graph import ChildSubmission
from flowfabric.core.ids import derive_id
from flowfabric.runtime import results
from flowfabric.runtime.branch import Branch, require_branch
from flowfabric.runtime.durable_call import DurableCall, awaiting_branch
from flowfabric.runtime.journal import Record
from flowfabric.runtime.runner import TaskSpec
from flowfabric.runtime.suspension import read_waits_for
from flowfabric.runtime.waits import ChildEnded, ChildWait, DueTimeReached
from flowfabric.values.aliases import Durable, Duration
from flowfabric.values.guards import mark_final
from flowfabric.values.inputs import digest_arguments
from flowfabric.values.records import Cancelled, Completed, Expired, Skipped, TimedOut

_WITH_REASON: Mapping[State, Any] = {State.CANCELLED: Cancelled, State.EXPIRED: Expired, State.SKIPPED: Skipped}


def submit_child(task: TaskSpec, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Durable[Any]:
    """Store a child and the record of this call in one commit. Every later run returns the same child."""
    return SubmitChild(require_branch("submit"), task, args, kwargs)


def run_child(task: TaskSpec, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Durable[Any]:
    """Store a child and wait for its result."""
    return RunChild(require_branch("run"), task, args, kwargs)


def await_result(id_: UUID, task: TaskSpec | None, timeout: Duration | None = None) -> AwaitResult:
    """Wait for the result of an execution."""
    return AwaitResult(require_branch("result"), id_, task, timeout)


def await_outcome(id_: UUID, task: TaskSpec | None, timeout: Duration | None = None) -> AwaitOutcome:
    """Wait until an execution has ended, and return how it ended."""
    return AwaitOutcome(require_branch("outcome"), id_, task, timeout)


class SubmitChild(DurableCall[Any]):
    """A call that submits a child."""

    verb = "submit"
    task: TaskSpec | None

    def __init__(self, branch: Branch, task: TaskSpec, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        digest = None if branch.run.app.arguments == "off" else digest_arguments(args, kwargs)
        self.submission = task.submission(args, kwargs)
        if task.call_options.id is not None:
            message = "id= does not apply to children, whose ids are derived from their parent; use key="
            raise InvalidRequest("invalid_request", message, kind=task.base)
        options = task.call_options
        if options.detached and options.key is not None:
            self.submission = replace(self.submission, key=options.key)
        elif options.key_window is not None:
            message = "key_window does not apply to a child, whose key is scoped to its parent; use detached=True"
            raise InvalidRequest("invalid_request", message, kind=task.base)
        super().__init__(branch, f"{self.verb}:{task.base}", self.verb, key=options.key, digest=digest)
        self.task, self.is_detached = task.newest, options.detached

    @property
    def child_id(self) -> UUID:
        """The id of the child, derived from the id and generation of this execution and the path of this call."""
        lease = self.run.lease
        return derive_id(lease.execution_id, "child", str(lease.generation), self.path)

    def replay(self, record: Record) -> Any:
        return self.run.app.make_handle(UUID(record.facts["child"]), self.task)

    async def execute(self) -> Any:
        return self.run.app.make_handle(await self._submit(StepStatus.OK), self.task)

    async def _submit(self, status: StepStatus) -> UUID:
        """Store the child and the record of this call in one commit, and return the child's id.

        A key of the namespace may belong to an execution whose id is not known before the submit. Then the record
        follows in a second commit. A repeated submit finds the same execution by the key.
        """
        child = ChildSubmission(self.path, self.submission, detached=self.is_detached)
        writer = self.run.record_writer
        if self.submission.key is None:
            return await writer.submit(child, self.call_id.record(status, child=str(self.child_id)))
        id_ = await writer.submit(child, None)
        await writer.write(self.call_id.record(status, child=str(id_)))
        return id_


class _EndCall(DurableCall[Any]):
    """A call that waits until an execution has ended, and records how it ended."""

    task: TaskSpec | None

    async def wait_end(self, id_: UUID, due: datetime | None, *, is_old: bool) -> Record:
        """Wait until the execution `id_` has ended, and record its outcome with the next commit."""
        verdict = await self.await_verdict(ChildWait(self, id_, due, is_old=is_old))
        match verdict:
            case ChildEnded(outcome=outcome):
                record = self._end_record(id_, outcome)
            case DueTimeReached(at=at):
                record = self.call_id.record(StepStatus.OK, child=str(id_), timed_out=at.isoformat())
            case _:
                raise AssertionError("an execution is waited for by its end or by time")
        self.run.record_writer.enqueue(record)
        return record

    def _end_record(self, id_: UUID, outcome: Outcome) -> Record:
        facts: dict[str, Any] = {"child": str(id_), "ended": outcome.state.value}
        if outcome.state is State.COMPLETED:
            return self.call_id.record(StepStatus.OK, value=outcome.result or b"null", **facts)
        failure = outcome.failure
        if failure is not None:
            facts["failure"] = {"message": failure.message, "category": failure.category}
            facts["detail"] = results.parse_object(failure.detail)
        facts["reason"] = outcome.cancel_reason or (failure.message if failure else "")
        return self.call_id.record(StepStatus.FAILED, **facts)

    def read_end(self, record: Record) -> results.FinalOutcome | TimedOut:
        """Return how the awaited execution ended, according to the record of this call."""
        facts = record.facts
        if "timed_out" in facts:
            return TimedOut(datetime.fromisoformat(facts["timed_out"]))
        state = State(facts["ended"])
        if state is State.COMPLETED:
            codec = self.task.result_codec if self.task is not None else results.untyped_codec()
            return results.FinalOutcome(Completed(codec.restore(record.value)))
        if state in _WITH_REASON:
            return results.FinalOutcome(_WITH_REASON[state](facts["reason"]))
        return results.recorded_failure(facts.get("failure"), facts.get("detail"), self.task)

    def read_value(self, record: Record) -> Any:
        """Return the result of the awaited execution, or raise an error if it did not complete."""
        end = self.read_end(record)
        if isinstance(end, TimedOut):
            late = TimeoutError(f"{self.path} has not ended by {end.at.isoformat()}")
            mark_final(late)
            raise late
        try:
            return end.value()
        except Exception as error:
            mark_final(error)
            raise


class RunChild(SubmitChild, _EndCall):
    """A child that is submitted and awaited."""

    verb = "run"

    def replay(self, record: Record) -> Any:
        return self.read_value(record)

    async def execute(self) -> Any:
        branch, former = awaiting_branch(self), await self._find_child()
        child = former or self.child_id
        branch.add_child(child)
        if former is None:
            child = await self._submit(StepStatus.OPEN)
        if self.submission.key is not None and child != self.child_id:
            # Another caller submitted the execution that holds the key, so the end of a group does not cancel it.
            branch.remove_child(former or self.child_id)
        record = await self.wait_end(child, None, is_old=former is not None)
        branch.remove_child(child)
        return self.read_value(record)

    async def _find_child(self) -> UUID | None:
        """Return the id of the recorded child, or None if a new child must be submitted.

        A replay can keep the record of a child from an earlier generation. If that child was cancelled, submit a new
        one.
        """
        child = None if self.record is None else UUID(self.record.facts["child"])
        if child is None or child == self.child_id:
            return child
        ended = (await read_waits_for(self.run, {}, [child])).children.get(child)
        return None if ended is not None and ended.state is State.CANCELLED else child


class AwaitOutcome(_EndCall):
    """A wait for the end of an execution by its id."""

    def __init__(self, branch: Branch, id_: UUID, task: TaskSpec | None, timeout: Duration | None) -> None:
        self.id, self.task = id_, task
        self.timeout: timedelta | None = None if timeout is None else validation.duration(timeout, "timeout")
        kind = task.base if task is not None else "execution"
        super().__init__(branch, f"result:{kind}", "result", digest=str(id_))

    async def execute(self) -> Any:
        is_old, due = self.record is not None, self.open_wait(self.timeout, child=str(self.id))
        return self.replay(await self.wait_end(self.id, due, is_old=is_old or due is None))

    def replay(self, record: Record) -> Any:
        end = self.read_end(record)
        return end if isinstance(end, TimedOut) else end.outcome


class AwaitResult(AwaitOutcome):
    """A wait for the result of an execution by its id."""

    def replay(self, record: Record) -> Any:
        return self.read_value(record)
