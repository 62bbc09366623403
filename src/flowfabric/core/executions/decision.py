"""The result of a decision function: the outcome to return, and the rows to write."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, TypeVar

from flowfabric.core.executions.records import Attempt, AttemptOutcome, Event, Execution
from flowfabric.core.executions.transitions import Transition, transition_event
from flowfabric.core.fast_dataclass import record
from flowfabric.core.waits.records import WaitChanges

OutcomeT = TypeVar("OutcomeT")
OutcomeT_co = TypeVar("OutcomeT_co", covariant=True)


@record(frozen=True, slots=True)
class Decision(Generic[OutcomeT_co]):
    """The result of an operation (`outcome`), and its writes to the store.

    `before` and `after` are the execution before and after the change. Without a change, `after` has the value None.
    `event` and `attempt` are the event of the change and the attempt that it ends. `extra_event` is a second event of
    the same change. `waits` are the changed suspensions, waitpoints and signals. With `ends_children`, the change also
    cancels all descendants of the execution.
    """

    outcome: OutcomeT_co
    before: Execution
    after: Execution | None = None
    event: Event | None = None
    attempt: Attempt | None = None
    extra_event: Event | None = None
    waits: WaitChanges | None = None
    ends_children: bool = False


def make_decision(
    outcome: OutcomeT,
    before: Execution,
    after: Execution,
    transition: Transition,
    attempt: Attempt | None = None,
    waits: WaitChanges | None = None,
    **facts: Any,
) -> Decision[OutcomeT]:
    """Return the decision for a transition; `facts` such as the principal and the reason go into its event."""
    event = transition_event(before, after, transition, **facts)
    return Decision(outcome, before, after, event, attempt, waits=waits)


def end_attempt(execution: Execution, outcome: AttemptOutcome, now: datetime, **details: Any) -> Attempt | None:
    """Return the history row of the attempt that ends now, or None if the attempt never started."""
    if execution.attempt_started_at is None:
        return None
    owner = execution.lease or execution.former
    return Attempt(
        execution_id=execution.id,
        attempt_index=execution.attempt_index,
        generation=execution.generation,
        origin=execution.attempt_origin,
        worker=owner.worker if owner else None,
        started_at=execution.attempt_started_at,
        ended_at=now,
        outcome=outcome,
        **details,
    )


def next_attempt(execution: Execution) -> dict[str, Any]:
    """Return the fields that open the next attempt.

    If the current attempt never started, the next attempt gets the same index.
    """
    used = execution.attempt_started_at is not None
    return {"attempt_index": execution.attempt_index + used, "attempt_started_at": None, "attempt_timeout_left": None}
