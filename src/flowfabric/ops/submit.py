"""submit: stores executions. A repeated id or key answers duplicate if the body is the same, else it is refused."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from flowfabric.core.errors import Conflict, InvalidRequest, Refused
from flowfabric.core.frozen import record
from flowfabric.core.outcomes import Created, Duplicate, Submitted
from flowfabric.core.policy import span
from flowfabric.core.requests import Submission
from flowfabric.core.standing import standing
from flowfabric.core.states import BlockingReason, State
from flowfabric.ops.hot import HotOperation
from flowfabric.store.executions import NewExecution
from flowfabric.store.routing import LaneState
from flowfabric.store.transaction import Transaction

_DELAYED = BlockingReason.WAITING_FOR_DELAY
_WAITING = BlockingReason.WAITING_FOR_WORKER


@record(frozen=True, slots=True)
class Arrival:
    """A submission with its id and route."""

    id: UUID
    route_id: int
    submission: Submission


async def submit_together(tx: Transaction, namespace: str, items: Sequence[Arrival]) -> list[Submitted | None]:
    """Inserts all that are new; those with a key, a duplicate id or a refusal are left to be looked at alone."""
    timed = any(_needs_the_time(item.submission) for item in items)
    now = await tx.now() if timed else None
    rows = [new_row(namespace, item, now) for item in items if _is_simple(item) and not _is_late(item, now)]
    inserted = await tx.hot.insert(rows) if rows else set()
    states = {row.id: row.state for row in rows}
    return [Created(item.id, states[item.id]) if item.id in inserted else None for item in items]


async def submit_standing_together(tx: Transaction, namespace: str, items: Sequence[Arrival]) -> list[Submitted | None]:
    """The same for submissions that signals are taken for from the beginning, with the waitpoints for them."""
    now = await tx.now()
    rows = [new_row(namespace, item, now) for item in items if not _is_late(item, now)]
    inserted = await tx.hot.insert(rows) if rows else set()
    states = {row.id: row.state for row in rows}
    new = [item for item in items if item.id in inserted]
    if new:
        await tx.waits.apply([standing(item.id, 0, item.submission.signals, now) for item in new])
    return [Created(item.id, states[item.id]) if item.id in inserted else None for item in items]


async def submit_alone(tx: Transaction, namespace: str, item: Arrival) -> Submitted:
    """Inserts one execution, under its key if it has one."""
    known = await _take_key(tx, namespace, item)
    if known is not None:
        return known
    # The key may have been waited for, so the time is read after it.
    now = await tx.now()
    if _is_late(item, now):
        return await _explain_late(tx, namespace, item, now)
    row = new_row(namespace, item, now)
    if await tx.hot.insert([row]):
        if item.submission.signals:
            await tx.waits.apply([standing(item.id, 0, item.submission.signals, now)])
        return Created(row.id, row.state)
    return await _explain(tx, namespace, item)


def _may_wait(item: Arrival) -> bool:
    """With a key or an id of the caller's own, an insert may have to wait for somebody else's transaction."""
    return item.submission.key is not None or item.submission.id is not None


def _is_standing(item: Arrival) -> bool:
    return bool(item.submission.signals)


def _is_simple(item: Arrival) -> bool:
    return item.submission.key is None and not _is_standing(item)


_STANDING = HotOperation(
    submit_standing_together, submit_alone, subject=lambda item: item.id, one_statement=False,
    solitary=lambda item: _may_wait(item) or not _is_standing(item),
)  # fmt: skip
SUBMIT = HotOperation(
    submit_together, submit_alone, subject=lambda item: item.id, solitary=_may_wait, others=_STANDING,
    for_others=_is_standing,
)  # fmt: skip


async def _take_key(tx: Transaction, namespace: str, item: Arrival) -> Duplicate | None:
    submission, window = item.submission, span(item.submission.policy.dedup_window)
    if submission.key is None or window == timedelta(0):
        return None
    fingerprint = submission.fingerprint(namespace)
    holder = await tx.keys.take(namespace, submission.key, item.id, fingerprint, window)
    if holder is None:
        return None
    id_, known = holder
    if known != fingerprint:
        raise _mismatch(f"key {submission.key!r}", id_)
    return Duplicate(id_)


def check_deadline(submission: Submission, now: datetime) -> None:
    """Refuses a deadline that has passed already."""
    if submission.deadline is not None and submission.deadline <= now:
        message = f"deadline {submission.deadline} is not after the store's time {now}"
        raise InvalidRequest("deadline_in_past", message, deadline=submission.deadline, now=now)


async def _explain_late(tx: Transaction, namespace: str, item: Arrival, now: datetime) -> Duplicate:
    """A repeated submission is answered even if its deadline has passed meanwhile; a new one is refused."""
    if await tx.executions.get(namespace, [item.id]):
        return await _explain(tx, namespace, item)
    check_deadline(item.submission, now)
    raise AssertionError("it was late, and time does not go back")


async def _explain(tx: Transaction, namespace: str, item: Arrival) -> Duplicate:
    known = await tx.executions.fingerprint(namespace, item.id)
    if known == item.submission.fingerprint(namespace):
        return Duplicate(item.id)
    raise await why_not_stored(tx, namespace, item, known)


async def why_not_stored(tx: Transaction, namespace: str, item: Arrival, known: bytes | None) -> Conflict | Refused:
    """Why a submission was left out by the statement that inserts: its lane drains, or its id is another's."""
    if known is None and await tx.lanes.state(namespace, item.submission.lane) is LaneState.DRAINING:
        message = f"lane {item.submission.lane!r} is draining and takes no new work; use another lane or resume it"
        return Refused("lane_draining", message, lane=item.submission.lane)
    return _mismatch(f"id {item.id}", item.id)


def new_row(namespace: str, item: Arrival, now: datetime | None) -> NewExecution:
    state, reason, ready_at = first_state(item.submission, now)
    return NewExecution(item.id, namespace, item.route_id, item.submission, state, reason, ready_at)


def first_state(submission: Submission, now: datetime | None) -> tuple[State, BlockingReason, datetime | None]:
    """The state that a submission is stored in, and the time that it waits for; the present is None if it has none."""
    ready_at = submission.ready_at
    if submission.delay is not None and now is not None:
        ready_at = now + span(submission.delay)
    if ready_at is not None and now is not None and ready_at > now:
        return State.DELAYED, _DELAYED, ready_at
    return State.WAITING, _WAITING, None


def _needs_the_time(submission: Submission) -> bool:
    return submission.delay is not None or submission.ready_at is not None or submission.deadline is not None


def _is_late(item: Arrival, now: datetime | None) -> bool:
    deadline = item.submission.deadline
    return deadline is not None and now is not None and deadline <= now


def _mismatch(what: str, id_: UUID) -> Conflict:
    message = f"{what} was used before, and not for this submission; use another one, or send the same body"
    return Conflict("idempotency_mismatch", message, execution_id=id_)
