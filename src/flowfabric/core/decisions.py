"""What a decision is: the answer, and what must be written so that it becomes true."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, TypeVar

from flowfabric.core.frozen import record
from flowfabric.core.records import Attempt, AttemptOutcome, Event, Execution
from flowfabric.core.transitions import Transition, event_of
from flowfabric.core.waits import WaitChanges

Answer = TypeVar("Answer")


@record(frozen=True, slots=True)
class Decision(Generic[Answer]):
    """An answer and, unless nothing has to change, the execution before and after with its event and ended attempt;
    `also` holds a second event, and `waits` what becomes of suspensions, waitpoints and signals."""

    answer: Answer
    before: Execution
    after: Execution | None = None
    event: Event | None = None
    attempt: Attempt | None = None
    also: Event | None = None
    waits: WaitChanges | None = None


def decided(
    answer: Answer,
    before: Execution,
    after: Execution,
    transition: Transition,
    attempt: Attempt | None = None,
    **facts: Any,
) -> Decision[Answer]:
    """The decision for a transition: its event says who, why and whatever other facts are given."""
    return Decision(answer, before, after, event_of(before, after, transition, **facts), attempt)


def end_attempt(execution: Execution, outcome: AttemptOutcome, now: datetime, **details: Any) -> Attempt | None:
    """The history row of the attempt that ends now; None if it was never started."""
    if execution.attempt_started_at is None:
        return None
    owner = execution.lease or execution.former
    return Attempt(
        execution_id=execution.id, attempt_index=execution.attempt_index, generation=execution.generation,
        origin=execution.attempt_origin, worker=owner.worker if owner else None,
        started_at=execution.attempt_started_at, ended_at=now, outcome=outcome, **details,
    )  # fmt: skip


def next_attempt(execution: Execution) -> dict[str, Any]:
    """The columns that open the next attempt; an index that was never started is used again."""
    used = execution.attempt_started_at is not None
    return {"attempt_index": execution.attempt_index + used, "attempt_started_at": None, "attempt_timeout_left": None}
