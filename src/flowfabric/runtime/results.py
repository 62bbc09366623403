"""Outcomes of executions, as records and errors, and the storage of results in the journal."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from flowfabric.core.executions.requests import Submission
from flowfabric.core.executions.states import BlockingReason, State
from flowfabric.core.executions.views import Description, Outcome, StateSnapshot
from flowfabric.runtime.log import LOG, log_fields
from flowfabric.values import ValueCodec, codec_for, failures, guards
from flowfabric.values.aliases import Duration
from flowfabric.values.codecs import StoredValue
from flowfabric.values.errors import (
    Diverged,
    ExecutionCancelled,
    ExecutionExpired,
    ExecutionFailed,
    ExecutionSkipped,
    StepFailed,
    ValueRefused,
    add_traceback,
)
from flowfabric.values.records import Cancelled, Completed, ErrorInfo, Expired, Failed, Skipped

if TYPE_CHECKING:
    from flowfabric.engine.engine import Engine
    from flowfabric.runtime.durable_call import DurableCall
    from flowfabric.runtime.journal import Record
    from flowfabric.runtime.runner import TaskSpec


Outcomes: TypeAlias = Completed[Any] | Failed | Cancelled | Expired | Skipped

_HELD_BY_CODE = ("diverged", "input_mismatch")
# With this mark, pytest leaves out the frames of this module, so that a failed test shows the lines of the user.
__tracebackhide__ = True


@dataclass(frozen=True, slots=True)
class FinalOutcome:
    """How an execution ended. `declared` is the error to raise if the task declares its class in `raises`."""

    outcome: Outcomes
    declared: Exception | None = None

    def value(self) -> Any:
        """Return the result, or raise an error if the execution did not complete."""
        match self.outcome:
            case Completed(value=value):
                return value
            case Failed(error=error):
                raise ExecutionFailed(error) if self.declared is None else self.declared
            case Cancelled(reason=reason):
                raise ExecutionCancelled(reason)
            case Expired(reason=reason):
                raise ExecutionExpired(reason)
            case Skipped(reason=reason):
                raise ExecutionSkipped(reason)


async def wait_for_end(engine: Engine, id_: UUID, timeout: Duration | None) -> Outcome | None:  # noqa: ASYNC109
    """Wait until the execution has ended. Return None if the timeout passes first.

    Raise `Diverged` if the execution is held because its code diverged, since it cannot end until it is unheld.
    """
    snapshot = await engine.executions.wait_until(id_, _is_held_by_code, timeout)
    return None if snapshot is None else await _read_outcome(engine, id_, snapshot, timeout)


async def run_to_end(engine: Engine, submission: Submission) -> tuple[UUID, Outcome]:
    """Submit an execution and wait until it has ended. Return its id and how it ended."""
    id_, snapshot = await engine.executions.submit_and_wait(submission, _is_held_by_code)
    outcome = snapshot.outcome or await _read_outcome(engine, id_, snapshot, None)
    assert outcome is not None, "there was no timeout"
    return id_, outcome


async def _read_outcome(engine: Engine, id_: UUID, snapshot: StateSnapshot, limit: Duration | None) -> Outcome | None:
    if snapshot.outcome is None:
        refuse_if_diverged(await engine.executions.describe(id_))
        return await wait_for_end(engine, id_, limit)  # The execution has been unheld since then.
    return snapshot.outcome


def _is_held_by_code(snapshot: StateSnapshot) -> bool:
    return snapshot.state is State.BLOCKED and snapshot.hold_reason in _HELD_BY_CODE


def refuse_if_diverged(description: Description) -> None:
    """Raise `Diverged` with the report if the execution is held because its code no longer matches its journal."""
    is_held = (
        description.state is State.BLOCKED and description.vector.blocking_reason is BlockingReason.PAUSED_BY_OPERATOR
    )
    if is_held and description.hold_reason in _HELD_BY_CODE:
        raise Diverged(description.hold_report or description.hold_reason or "")


async def read_end(
    engine: Engine, id_: UUID, outcome: Outcome, task: TaskSpec | None, codec: ValueCodec[Any]
) -> FinalOutcome:
    """Return how a terminal execution ended, with its decoded result."""
    match outcome.state:
        case State.COMPLETED:
            return FinalOutcome(Completed(codec.restore(outcome.result or b"null")))
        case State.CANCELLED:
            return FinalOutcome(Cancelled(outcome.cancel_reason or ""))
        case State.EXPIRED:
            return FinalOutcome(Expired(outcome.failure.message if outcome.failure else ""))
        case State.SKIPPED:
            return FinalOutcome(Skipped((await engine.operator.explain(id_)).sentence))
    failure = outcome.failure
    if failure is None:
        return recorded_failure(None, None, task)
    recorded = {"message": failure.message, "category": failure.category}
    return recorded_failure(recorded, parse_object(failure.detail), task)


def untyped_codec() -> ValueCodec[Any]:
    """Return the codec for results of unknown tasks, which accepts any JSON."""
    codec: ValueCodec[Any] = codec_for(Any, what="the result")
    return codec


def recorded_failure(
    failure: Mapping[str, Any] | None, detail: Mapping[str, Any] | None, task: TaskSpec | None
) -> FinalOutcome:
    """Return a failure from its message and category, and from the detail that a run recorded.

    Failures that the engine itself recorded have no detail.
    """
    if detail is None:
        document = failure or {}
        category = str(document.get("category", ""))
        return FinalOutcome(
            Failed(ErrorInfo(type=category, message=str(document.get("message", "")), category=category))
        )
    raises = task.settings.raises if task else ()
    info = failures.from_json(detail)
    declared = failures.rebuild(detail, raises) if "class" in detail else None
    if declared is not None:
        add_traceback(declared, info)
    return FinalOutcome(Failed(info), declared)


def failure_of(record: Record, raises: Collection[type[Exception]], cause: Exception | None = None) -> Exception:
    """Return the error to raise for a recorded failure. Every run gets an equal error.

    Its cause is the exception of the step. A later run has only the recorded traceback, which becomes a note.
    """
    document = record.facts["error"]
    info = failures.from_json(document)
    error = failures.rebuild(document, raises)
    if error is None:
        error = StepFailed(info, record.path, raises=raises)
    else:
        guards.mark_final(error)
    if cause is None:
        add_traceback(error, info)
    else:
        guards.set_cause(error, cause)
    return error


def parse_object(text: bytes | None) -> dict[str, Any] | None:
    """Return the JSON object in a text, or None if the text is not a JSON object."""
    try:
        document = json.loads(text or b"null")
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


_warned: set[tuple[str, str]] = set()


def store_result(value: Any, codec: ValueCodec[Any], call: DurableCall[Any]) -> StoredValue[Any]:
    """Encode the result of a call for storage, and decode it again, so that the first run sees the stored value.

    If the decoded value differs from the result, raise an error in tests. Elsewhere only warn, once per step, because
    the effect of the step has happened and must not be repeated.
    """
    stored = codec.store_value(value)
    if stored.difference is not None:
        if call.run.hooks.is_strict:
            raise ValueRefused(f"{call.path}: {stored.difference}", path=call.path)
        task, lease = call.run.task.name, call.run.lease
        name = call.path.rpartition("/")[2].partition("#")[0].partition("[")[0]
        if (task, name) not in _warned:
            _warned.add((task, name))
            message, fields = "The result of %s in %s changes when it is stored: %s", log_fields(lease, call.path)
            LOG.warning(message, name, task, stored.difference, extra=fields)
    return stored
