"""submit: store executions. A repeated id or key returns `Duplicate` if the body is the same, else it is refused.

```text
submission ──┬── declares signals? ──> standing_batch   insert, then the standing waitpoints
             ├── has a key or an id of the caller's? ──> locked_single
             └── otherwise ──> insert_batch             one statement
                                   │ left out: late, draining lane
                                   └──> locked_single   insert, or explain
```
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from flowfabric.core import validation
from flowfabric.core.errors import Conflict, InvalidRequest, Refused
from flowfabric.core.executions.outcomes import Created, Duplicate, Submitted
from flowfabric.core.executions.records import Route
from flowfabric.core.executions.requests import Submission
from flowfabric.core.executions.states import BlockingReason, State
from flowfabric.core.fast_dataclass import record
from flowfabric.core.lanes import LaneState
from flowfabric.core.policy import span
from flowfabric.core.waits.records import make_standing_waitpoints
from flowfabric.ops.operation import BatchOperation
from flowfabric.store.records import NewExecution
from flowfabric.store.rows import INSERT_COLUMNS, insert_values, matched_ids
from flowfabric.store.transaction import Transaction

_DELAYED = BlockingReason.WAITING_FOR_DELAY
_WAITING = BlockingReason.WAITING_FOR_WORKER


@record(frozen=True, slots=True)
class SubmitRequest:
    """A submission with its id."""

    id: UUID
    submission: Submission


class Submit(BatchOperation[SubmitRequest, Submitted]):
    """Insert executions by one statement."""

    name = "submit"
    batch_path = "insert_batch"

    def key(self, request: SubmitRequest) -> int:
        return request.id.int

    async def run_batch(
        self, tx: Transaction, namespace: str, requests: Sequence[SubmitRequest]
    ) -> list[Submitted | None]:
        """Insert all new executions. Leave submissions with a key, a repeated id or a refusal to `run_one`."""
        needs_time = any(_needs_time(request.submission) for request in requests)
        now = await tx.now() if needs_time else None
        new = [
            new_row(namespace, request, now)
            for request in requests
            if _is_simple(request) and not _is_late(request, now)
        ]
        inserted = await insert_executions(tx, new) if new else set()
        states = {row.id: row.state for row in new}
        return [Created(request.id, states[request.id]) if request.id in inserted else None for request in requests]

    async def run_one(self, tx: Transaction, namespace: str, request: SubmitRequest) -> Submitted:
        return await submit_one(tx, namespace, request)

    def is_exclusive(self, request: SubmitRequest) -> bool:
        return _may_wait(request)

    def use_fallback(self, request: SubmitRequest) -> bool:
        return _has_signals(request)


class SubmitWithSignals(Submit):
    """Insert executions that declare signals, with their standing waitpoints."""

    single_statement = False
    batch_path = "standing_batch"

    async def run_batch(
        self, tx: Transaction, namespace: str, requests: Sequence[SubmitRequest]
    ) -> list[Submitted | None]:
        """Insert all new executions and their waitpoints. Leave repeated or refused submissions to `run_one`."""
        now = await tx.now()
        new = [new_row(namespace, request, now) for request in requests if not _is_late(request, now)]
        inserted = await insert_executions(tx, new) if new else set()
        states = {row.id: row.state for row in new}
        await _add_standing_waitpoints(tx, [row for row in new if row.id in inserted], now)
        return [Created(request.id, states[request.id]) if request.id in inserted else None for request in requests]

    def is_exclusive(self, request: SubmitRequest) -> bool:
        return _may_wait(request) or not _has_signals(request)

    def use_fallback(self, request: SubmitRequest) -> bool:
        return False


SUBMIT = Submit(fallback=SubmitWithSignals())


async def insert_executions(tx: Transaction, new: Sequence[NewExecution]) -> set[UUID]:
    """Insert executions of one namespace, and return the inserted ids.

    An execution is not inserted if its id exists already or its lane is draining. The insert also leaves out executions
    whose route does not exist. They are inserted after their routes were created.
    """
    inserted = await _insert_along_routes(tx, new)
    missing = [execution for execution in new if execution.id not in inserted] if len(inserted) < len(new) else []
    if missing:
        await tx.routes.ensure(_route(execution) for execution in missing)
        inserted |= await _insert_along_routes(tx, missing)
    return inserted


def _route(execution: NewExecution) -> Route:
    submission = execution.submission
    return Route(execution.namespace, submission.lane, submission.kind, tuple(submission.requires))


async def _insert_along_routes(tx: Transaction, new: Sequence[NewExecution]) -> set[UUID]:
    inserted = await tx.session.fetch_rows(
        "insert_executions",
        INSERT_COLUMNS,
        [insert_values(execution) for execution in new],
        namespace=new[0].namespace,
        now=tx.session.bound_now,
    )
    for execution in new if inserted else ():
        if execution.state is State.WAITING:
            tx.hints.note_work(execution.namespace, execution.submission.lane)
    return matched_ids(inserted, [execution.id for execution in new])


async def insert_all(tx: Transaction, namespace: str, new: Sequence[NewExecution], now: datetime) -> None:
    """Insert executions and their standing waitpoints; raise if one of them cannot be inserted."""
    for execution in new:
        _check_deadline(execution.submission, now)
    for start in range(0, len(new), validation.MAX_BATCH):
        batch = new[start : start + validation.MAX_BATCH]
        inserted = await insert_executions(tx, batch)
        for execution in batch:
            if execution.id not in inserted:
                raise await _explain_not_stored(tx, namespace, execution, None)
    await _add_standing_waitpoints(tx, new, now)


async def _add_standing_waitpoints(tx: Transaction, new: Sequence[NewExecution], now: datetime) -> None:
    submissions = [(execution.id, execution.submission) for execution in new if execution.submission.signals]
    if submissions:
        await tx.waits.apply([make_standing_waitpoints(id_, 0, each.signals, now) for id_, each in submissions])


async def submit_one(tx: Transaction, namespace: str, request: SubmitRequest) -> Submitted:
    """Insert one execution, and reserve its idempotency key if any. Return a duplicate instead if it exists already."""
    duplicate = await take_key(tx, namespace, request)
    if duplicate is not None:
        return duplicate
    # Taking the key may have waited for another transaction, so the time is read only now.
    now = await tx.now()
    if _is_late(request, now):
        return await _explain_late(tx, namespace, request, now)
    row = new_row(namespace, request, now)
    if await insert_executions(tx, [row]):
        await _add_standing_waitpoints(tx, [row], now)
        return Created(row.id, row.state)
    return await _explain(tx, namespace, request)


def _may_wait(request: SubmitRequest) -> bool:
    """Return True if the insert may wait for another transaction, because the caller chose its key or id."""
    return request.submission.key is not None or request.submission.id is not None


def _has_signals(request: SubmitRequest) -> bool:
    return bool(request.submission.signals)


def _is_simple(request: SubmitRequest) -> bool:
    return request.submission.key is None and not _has_signals(request)


async def take_key(tx: Transaction, namespace: str, request: SubmitRequest) -> Duplicate | None:
    """Reserve the idempotency key of a submission, if any. Return a duplicate if another execution holds the key."""
    submission, window = request.submission, span(request.submission.policy.dedup_window)
    if submission.key is None or window == timedelta(0):
        return None
    fingerprint = submission.fingerprint(namespace)
    holder = await tx.idempotency_keys.take(namespace, submission.key, request.id, fingerprint, window)
    if holder is None:
        return None
    id_, stored_fingerprint = holder
    if stored_fingerprint != fingerprint:
        raise _key_mismatch(submission.key, id_)
    return Duplicate(id_)


def _check_deadline(submission: Submission, now: datetime) -> None:
    if submission.deadline is not None and submission.deadline <= now:
        message = f"deadline {submission.deadline} is not after the store's time {now}"
        raise InvalidRequest("deadline_in_past", message, deadline=submission.deadline, now=now)


async def _explain_late(tx: Transaction, namespace: str, request: SubmitRequest, now: datetime) -> Duplicate:
    """Return a duplicate if this late submission was stored before its deadline passed; otherwise refuse it."""
    if await tx.executions.get(namespace, [request.id]):
        return await _explain(tx, namespace, request)
    _check_deadline(request.submission, now)
    raise AssertionError("the deadline had passed, and the clock does not go back")


async def _explain(tx: Transaction, namespace: str, request: SubmitRequest) -> Duplicate:
    fingerprint = await tx.executions.fingerprint(namespace, request.id)
    if fingerprint == request.submission.fingerprint(namespace):
        return Duplicate(request.id)
    raise await _explain_not_stored(tx, namespace, request, fingerprint)


async def _explain_not_stored(
    tx: Transaction, namespace: str, request: SubmitRequest | NewExecution, fingerprint: bytes | None
) -> Conflict | Refused:
    """Return why the insert left out a submission: its lane is draining, or another execution has its id."""
    lane = request.submission.lane
    if fingerprint is None and (await tx.lanes.get(namespace, lane)).state is LaneState.DRAINING:
        message = f"lane {lane!r} is draining and takes no new work; use another lane or resume it"
        return Refused("lane_draining", message, lane=lane)
    return _mismatch(f"id {request.id}", request.id)


def new_row(namespace: str, request: SubmitRequest, now: datetime | None) -> NewExecution:
    """Return the execution to insert. `now` may be None for submissions without a delay, start time or deadline."""
    state, reason, ready_at = first_state(request.submission, now)
    return NewExecution(request.id, namespace, request.submission, state, reason, ready_at)


def first_state(submission: Submission, now: datetime | None) -> tuple[State, BlockingReason, datetime | None]:
    """Return the first state of a submitted execution, its blocking reason, and its start time if it is delayed.

    `now` may be None for submissions without a delay or start time.
    """
    ready_at = submission.ready_at
    if submission.delay is not None and now is not None:
        ready_at = now + span(submission.delay)
    if ready_at is not None and now is not None and ready_at > now:
        return State.DELAYED, _DELAYED, ready_at
    return State.WAITING, _WAITING, None


def _needs_time(submission: Submission) -> bool:
    return submission.delay is not None or submission.ready_at is not None or submission.deadline is not None


def _is_late(request: SubmitRequest, now: datetime | None) -> bool:
    deadline = request.submission.deadline
    return deadline is not None and now is not None and deadline <= now


def _mismatch(what: str, id_: UUID) -> Conflict:
    message = f"{what} was used before for another submission; use another one, or send the same body"
    return Conflict("idempotency_mismatch", message, execution_id=id_)


def _key_mismatch(key: str, id_: UUID) -> Conflict:
    message = (
        f"key {key!r} belongs to execution {id_}, which was submitted with another body, and holds as long as that "
        "execution is kept, and at least for its window; use another key, or send the same body"
    )
    return Conflict("idempotency_mismatch", message, execution_id=id_, key=key)
