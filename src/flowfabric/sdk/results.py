"""How an execution ended, read back as records and errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from flowfabric.core.requests import Submission
from flowfabric.core.states import BlockingReason, State
from flowfabric.core.views import Description, Glance, Outcome
from flowfabric.sdk import failures
from flowfabric.sdk.aliases import Duration
from flowfabric.sdk.errors import (
    Diverged,
    ExecutionCancelled,
    ExecutionExpired,
    ExecutionFailed,
    ExecutionSkipped,
)
from flowfabric.sdk.records import Cancelled, Completed, ErrorInfo, Expired, Failed, Skipped
from flowfabric.sdk.values import Form, form_of

if TYPE_CHECKING:
    from flowfabric.engine.engine import Engine
    from flowfabric.sdk.tasks import Task

Outcomes: TypeAlias = Completed[Any] | Failed | Cancelled | Expired | Skipped

_HELD_BY_CODE = ("diverged", "input_mismatch")


@dataclass(frozen=True, slots=True)
class End:
    """How an execution ended, and the error to raise if one of its declared classes was the reason."""

    outcome: Outcomes
    declared: Exception | None = None

    def value(self) -> Any:
        """The result, or the error that stands for how it ended otherwise."""
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
    """Waits until the execution has ended; None if the timeout passes first. One that is held because its code
    diverged would never end by itself: that is raised."""
    glance = await engine.executions.wait_until(id_, _is_held_by_code, timeout)
    return None if glance is None else await _outcome_of(engine, id_, glance, timeout)


async def run_to_end(engine: Engine, submission: Submission) -> tuple[UUID, Outcome]:
    """The id of a new execution, and how it ended."""
    id_, glance = await engine.executions.run(submission, _is_held_by_code)
    outcome = glance.outcome or await _outcome_of(engine, id_, glance, None)
    assert outcome is not None, "there was no timeout"
    return id_, outcome


async def _outcome_of(engine: Engine, id_: UUID, glance: Glance, limit: Duration | None) -> Outcome | None:
    if glance.outcome is None:
        refuse_if_diverged(await engine.executions.describe(id_))
        return await wait_for_end(engine, id_, limit)  # Somebody has let it go on meanwhile.
    return glance.outcome


def _is_held_by_code(glance: Glance) -> bool:
    return glance.state is State.BLOCKED and glance.hold_reason in _HELD_BY_CODE


def refuse_if_diverged(found: Description) -> None:
    """Raises the report of an execution that is held because its code no longer does what is recorded."""
    is_held = found.state is State.BLOCKED and found.vector.blocking_reason is BlockingReason.PAUSED_BY_OPERATOR
    if is_held and found.hold_reason in _HELD_BY_CODE:
        raise Diverged(found.hold_report or found.hold_reason or "")


async def read_end(engine: Engine, id_: UUID, outcome: Outcome, task: Task[..., Any] | None, form: Form[Any]) -> End:
    """What a terminal execution left."""
    match outcome.state:
        case State.COMPLETED:
            return End(Completed(form.restore(outcome.result or b"null")))
        case State.CANCELLED:
            return End(Cancelled(outcome.cancel_reason or ""))
        case State.EXPIRED:
            return End(Expired(outcome.failure.message if outcome.failure else ""))
        case State.SKIPPED:
            return End(Skipped((await engine.operator.explain(id_)).sentence))
        case _:
            return _failed(outcome, task)


def untyped_form() -> Form[Any]:
    """For results of executions whose task nobody here knows: whatever JSON they hold."""
    form: Form[Any] = form_of(Any, what="the result")
    return form


def recorded_failure(
    failure: Mapping[str, Any] | None, detail: Mapping[str, Any] | None, task: Task[..., Any] | None
) -> End:
    """A failure from its message and category, and the detail that a run recorded; what the engine itself found has
    no detail."""
    if detail is None:
        said = failure or {}
        category = str(said.get("category", ""))
        return End(Failed(ErrorInfo(type=category, message=str(said.get("message", "")), category=category)))
    raises = task.settings.raises if task else ()
    declared = failures.rebuild(detail, raises) if "class" in detail else None
    return End(Failed(failures.from_json(detail)), declared)


def _failed(outcome: Outcome, task: Task[..., Any] | None) -> End:
    said = outcome.failure
    failure = None if said is None else {"message": said.message, "category": said.category}
    return recorded_failure(failure, _document(None if said is None else said.detail), task)


def _document(detail: bytes | None) -> dict[str, Any] | None:
    try:
        found = json.loads(detail or b"null")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
