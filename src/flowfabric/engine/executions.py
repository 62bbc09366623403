"""`engine.executions`: submit work, wait for it, and read it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from flowfabric.core import validation
from flowfabric.core.errors import FlowFabricError, InvalidRequest, Unavailable
from flowfabric.core.executions.outcomes import Created, Duplicate, Submitted
from flowfabric.core.executions.records import Event, RecordedStep
from flowfabric.core.executions.requests import Submission
from flowfabric.core.executions.states import State
from flowfabric.core.executions.views import ApproximateCount, Description, Outcome, Page, StateSnapshot, Summary
from flowfabric.core.ids import parse_id, parse_id_prefix
from flowfabric.core.policy import DEFAULT_POLICY, Policy, span
from flowfabric.core.validation import parse_choice
from flowfabric.core.waits.schemas import DeclaredSignals
from flowfabric.engine.context import Context
from flowfabric.engine.cursors import FIRST_ID, LAST_ID, cut_page, id_after, open_cursor, query_digest
from flowfabric.engine.repeats import with_ids
from flowfabric.notify.hub import POLL_WHILE_LISTENING_S, NotifyHub
from flowfabric.notify.waiters import Waiter, end_topic
from flowfabric.ops.executions import read
from flowfabric.ops.executions.read import IdPage, NumberedPage, list_executions
from flowfabric.ops.executions.submit import SUBMIT, SubmitRequest, first_state
from flowfabric.ops.executions.submit_in_transaction import JoinedSubmission, submit_in_transaction
from flowfabric.ops.executions.update import TagChange, set_tags
from flowfabric.ops.leases.read import PEEK
from flowfabric.store.records import Listing

INITIAL_POLL_S = 0.005
_MAX_POLL_S = 0.25
_MAX_POLL_NOTIFIED_S = 2.0
_POLL_INTERVAL = timedelta(seconds=POLL_WHILE_LISTENING_S)
_NO_TAGS: Mapping[str, str] = {}
Result = TypeVar("Result")
# A function that checks whether the wait is over, and returns None if it is not. Its argument is the snapshot of the
# notification; without a snapshot, the function reads the store.
Check = Callable[[StateSnapshot | None], Awaitable[Result | None]]


class Executions:
    """Submits executions, waits for their end, and reads them."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def submit(
        self,
        kind: str | Submission,
        payload: bytes = b"",
        *,
        encoding: str = "json",
        lane: str = "default",
        priority: int = 0,
        requires: Collection[str] = (),
        policy: Policy = DEFAULT_POLICY,
        tags: Mapping[str, str] = _NO_TAGS,
        id: UUID | str | None = None,
        key: str | None = None,
        ready_at: datetime | None = None,
        delay: validation.Duration | None = None,
        deadline: datetime | None = None,
        signals: DeclaredSignals = (),
        creator: str | None = None,
    ) -> Submitted:
        """Store one new execution, described by a kind and options or by a `Submission`.

        `creator` names the person or program that submits. It is kept with the execution, and takes no part in the
        comparison of repeated calls.

        If the call is repeated with the same id or key and the same body, it returns `Duplicate`. If it is repeated
        with a different body, it raises `Conflict` with code `idempotency_mismatch`. If the connection breaks before
        the reply, the engine repeats the call under the same id. If the store stays unavailable, the fields of the
        error contain the `id`; pass that id when you repeat the call.
        """
        submission = (
            kind
            if isinstance(kind, Submission)
            else Submission(
                kind=kind,
                payload=payload,
                encoding=encoding,
                lane=lane,
                priority=priority,
                requires=requires,
                policy=policy,
                tags=tags,
                id=id,
                key=key,
                ready_at=ready_at,
                delay=delay,
                deadline=deadline,
                signals=signals,
                creator=creator,
            )
        )
        request = self._request(submission)
        try:
            return await self._submit(request)
        except Unavailable as error:
            raise with_ids(error, id=request.id) from error

    async def submit_many(self, submissions: Sequence[Submission]) -> list[Submitted | FlowFabricError]:
        """Store up to 1,000 executions, and return the outcome or the refusal of each, in order.

        If the store is unavailable, the fields of each error contain the `id` of its submission.
        """
        checked = [_check_submission(submission) for submission in validation.batch(submissions, "submissions")]
        requests = [self._request(submission) for submission in checked]
        try:
            outcomes = await self._context.call_many(SUBMIT, requests)
        except Unavailable as error:
            return [with_ids(error, id=request.id) for request in requests]
        return [
            _describe_error(outcome, request.id)
            if isinstance(outcome, FlowFabricError)
            else self._note_submitted(request, outcome)
            for outcome, request in zip(outcomes, requests, strict=True)
        ]

    async def submit_and_wait(
        self, submission: Submission, until: Callable[[StateSnapshot], bool]
    ) -> tuple[UUID, StateSnapshot]:
        """Store one execution, wait for it as `wait_until` does, and return its id with the snapshot.

        The call starts to listen for the end before it stores the execution, so it needs no read after the submission.
        """
        request = self._request(_check_submission(submission))
        _check_condition(until)
        try:
            if submission.id is None:
                return await self._submit_and_expect(request, until)
            # Several callers may wait for an id that a caller has chosen.
            outcome = await self._submit(request)
            return outcome.id, await self._wait_until(outcome.id, until)
        except Unavailable as error:
            raise with_ids(error, id=request.id) from error

    async def _submit_and_expect(
        self, request: SubmitRequest, until: Callable[[StateSnapshot], bool]
    ) -> tuple[UUID, StateSnapshot]:
        wakeups, id_ = self._context.wakeups, request.id
        end = wakeups.expect_end(id_)
        try:
            outcome = await self._submit(request)
            while isinstance(outcome, Created):
                snapshot = await end
                if snapshot is None:
                    end = wakeups.expect_end(id_)
                    snapshot = await self._context.call(PEEK, id_)
                if snapshot.outcome is not None or until(snapshot):
                    return id_, snapshot
        finally:
            wakeups.waiters.forget_end(id_)
        return outcome.id, await self._wait_until(outcome.id, until)

    async def _wait_until(self, id_: UUID, until: Callable[[StateSnapshot], bool]) -> StateSnapshot:
        snapshot = await self.wait_until(id_, until)
        assert snapshot is not None, "there was no timeout"
        return snapshot

    async def submit_in_transaction(self, connection: object, submission: Submission) -> Submitted:
        """Store one execution in the open transaction of an asynchronous connection.

        `connection` is an asyncpg connection, a psycopg AsyncConnection, or an AsyncConnection or AsyncSession of
        SQLAlchemy with one of these drivers. This call never commits or rolls back the transaction, and a refusal
        leaves the transaction unchanged. On PostgreSQL, a database error in this call aborts the transaction, as an
        error in any other statement does.
        """
        request = self._joined(submission)
        has_key = submission.key is not None
        return await self._context.call_within(connection, submit_in_transaction, request, savepoint=has_key)

    def submit_in_transaction_sync(self, connection: object, submission: Submission) -> Submitted:
        """Store one execution in the open transaction of a synchronous connection, from any thread.

        `connection` is a psycopg Connection, a Connection or Session of SQLAlchemy with psycopg, or
        `django.db.connection` inside `transaction.atomic()`. For an engine on SQLite, it is a connection of sqlite3 or
        Django to the same file. This call switches automatic checkpoints off for that connection, and they stay off. No
        event loop is needed.
        """
        request = self._joined(submission)
        has_key = submission.key is not None
        return self._context.call_within_sync(connection, submit_in_transaction, request, savepoint=has_key)

    async def peek(self, id: UUID | str) -> StateSnapshot:
        """Return the state of the execution. This is cheap, because concurrent callers share one read."""
        return await self._context.call(PEEK, parse_id(id))

    async def wait(self, id: UUID | str, timeout: validation.Duration | None = None) -> Outcome | None:  # noqa: ASYNC109
        """Wait until the execution has ended, and return its outcome, or None after `timeout`."""
        snapshot = await self.wait_until(id, _has_ended, timeout)
        return None if snapshot is None else snapshot.outcome

    async def wait_until(
        self,
        id: UUID | str,
        until: Callable[[StateSnapshot], bool],
        timeout: validation.Duration | None = None,  # noqa: ASYNC109
    ) -> StateSnapshot | None:
        """Return the first snapshot for which `until` is true or the execution has ended, or None after `timeout`.

        A notification reports the end of the execution immediately. Other changes are found by polling, within seconds.
        """
        id_ = parse_id(id)
        return await wait_until_ended(self._context.wakeups, id_, self._check_until(id_, until), timeout)

    async def describe(self, id: UUID | str) -> Description:
        """Return everything about one execution."""
        return await self._context.call(read.describe, parse_id(id))

    async def find(self, *, key: str) -> Description:
        """Return everything about the execution that holds an idempotency key of this namespace.

        The key of a child that is not detached is scoped to its parent, so it is not found.
        """
        return await self._context.call(read.find, validation.name(key, "key"))

    async def result(self, id: UUID | str) -> Outcome | None:
        """Return how the execution ended, with its result, or None if it has not ended."""
        return await self._context.call(read.result, parse_id(id))

    async def history(self, id: UUID | str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Return the events of the execution with a version above `after`, in order."""
        return await self._context.call(read.history, _numbered_page(id, after, limit))

    async def steps(self, id: UUID | str, *, after: int = 0, limit: int = 1000) -> list[RecordedStep]:
        """Return the valid recorded steps with a sequence number above `after`, in order."""
        return await self._context.call(read.steps, _numbered_page(id, after, limit))

    async def children(self, id: UUID | str, *, after: UUID | str | None = None, limit: int = 1000) -> list[Summary]:
        """Return the children with an id above `after`, sorted by id, without detached children."""
        last = None if after is None else parse_id(after, "after")
        return await self._context.call(read.children, IdPage(parse_id(id), last, _page_limit(limit)))

    async def list(
        self,
        *,
        state: State | str | Collection[State | str] | None = None,
        lane: str | None = None,
        kind: str | None = None,
        key: str | None = None,
        flow: UUID | str | None = None,
        id_prefix: str | None = None,
        tags: Mapping[str, str] | None = None,
        created_from: datetime | None = None,
        created_until: datetime | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        """Return one page of executions that match all filters, newest id first.

        `state` may be several states. `flow` selects the members of a flow, and `id_prefix` the ids that start with
        these characters. Pass `next_cursor` of the page to get the next one.
        """
        context = self._context
        first, last = (FIRST_ID, LAST_ID) if id_prefix is None else parse_id_prefix(id_prefix, "id_prefix")
        filters: dict[str, Any] = {
            "states": _parse_states(state),
            "lane": None if lane is None else validation.name(lane, "lane"),
            "kind": None if kind is None else validation.name(kind, "kind"),
            "key": None if key is None else validation.name(key, "key"),
            "flow": None if flow is None else parse_id(flow, "flow"),
            "first": first,
            "created_from": None if created_from is None else validation.timestamp(created_from, "created_from"),
            "created_until": None if created_until is None else validation.timestamp(created_until, "created_until"),
            "tags": None if tags is None else validation.tags(tags),
        }
        size = validation.integer(limit, "limit", 1, validation.MAX_BATCH)
        query = query_digest(context.namespace, {**filters, "last": last})
        before = id_after(last) if cursor is None else open_cursor(cursor, query)
        listing = Listing(namespace=context.namespace, before=before, limit=size + 1, **filters)
        summaries = await context.call(list_executions, listing)
        return Page(*cut_page(summaries, size, query, lambda execution: execution.id))

    async def count(self) -> dict[State, ApproximateCount]:
        """Return the number of executions in each state.

        It is exact up to 10,000; a higher number is marked as an estimate.
        """
        return await self._context.call(read.count_by_state, None)

    async def set_tags(self, id: UUID | str, tags: Mapping[str, str | None]) -> dict[str, str]:
        """Set the given tags, remove each tag with the given value None, and return all tags of the execution.

        This is allowed in every state.
        """
        return await self._context.call(set_tags, tag_change(id, tags, "id"))

    async def _submit(self, request: SubmitRequest) -> Submitted:
        outcome = await self._context.call(SUBMIT, request)
        if isinstance(outcome, Created) and not request.submission.has_times:
            return outcome
        return self._note_submitted(request, outcome)

    def _note_submitted(self, request: SubmitRequest, outcome: Submitted) -> Submitted:
        """Announce the due times of a new execution, and return the outcome.

        If this call minted the id of a duplicate, then an earlier try of this call has stored the execution.
        """
        submission = request.submission
        if isinstance(outcome, Duplicate) and outcome.id == request.id and submission.id is None:
            now = self._context.wakeups.store_now()
            outcome = Created(outcome.id, first_state(submission, now)[0])
        _note_due_times(self._context, outcome, submission)
        return outcome

    def _request(self, submission: Submission) -> SubmitRequest:
        return SubmitRequest(self._id(submission), submission)

    def _joined(self, submission: object) -> JoinedSubmission:
        if not isinstance(submission, Submission):
            raise InvalidRequest("invalid_type", f"submission must be a Submission, not {type(submission).__name__}")
        return JoinedSubmission(self._id(submission), submission, _POLL_INTERVAL)

    def _id(self, submission: Submission) -> UUID:
        return submission.id if isinstance(submission.id, UUID) else self._context.ids.mint()

    def _check_until(self, id_: UUID, until: Callable[[StateSnapshot], bool]) -> Check[StateSnapshot]:
        _check_condition(until)

        async def check(payload: StateSnapshot | None) -> StateSnapshot | None:
            snapshot = await self._context.call(PEEK, id_) if payload is None else payload
            return snapshot if snapshot.outcome is not None or until(snapshot) else None

        return check


# The functions below wait for the end of an execution or a flow. A notification reports the end; in case it is lost,
# they also poll.


async def wait_until_ended(
    wakeups: NotifyHub,
    id_: UUID,
    check: Check[Result],
    timeout: validation.Duration | None,  # noqa: ASYNC109
) -> Result | None:
    """Call `check` after each notification or pause until it returns a result, and return that result.

    Return None after `timeout`.
    """
    limit_s = None if timeout is None else validation.duration(timeout, "timeout").total_seconds()
    if not wakeups.is_alive:
        # Check first, because listening is not needed if the execution or flow has ended already.
        result = await check(None)
        if result is not None:
            return result
    with wakeups.waiter([end_topic(id_)]) as waiter:
        result = await check(None)
        if result is not None:
            return result
        if limit_s is None:
            return await _wait_for(wakeups, waiter, check)
        try:
            async with asyncio.timeout(limit_s):
                return await _wait_for(wakeups, waiter, check)
        except TimeoutError:
            return None


async def _wait_for(wakeups: NotifyHub, waiter: Waiter, check: Check[Result]) -> Result:
    pause_s = INITIAL_POLL_S
    while True:
        # While the listener is connected, poll rarely, only in case a notification is lost.
        max_s = _MAX_POLL_NOTIFIED_S if wakeups.is_alive else pause_s
        await waiter.wait(random.uniform(max_s / 2, max_s))
        pause_s = min(2 * pause_s, _MAX_POLL_S)
        result = await check(waiter.snapshot)
        if result is not None:
            return result


def tag_change(id: object, tags: object, field: str) -> TagChange:
    """Return a validated change of the tags of an execution or a flow."""
    if not isinstance(tags, Mapping):
        raise InvalidRequest("invalid_type", f"tags must be a mapping, not {type(tags).__name__}", field="tags")
    validation.tags({key: "" if value is None else value for key, value in tags.items()})
    return TagChange(parse_id(id, field), tags)


def _has_ended(snapshot: StateSnapshot) -> bool:
    return snapshot.outcome is not None


def _check_condition(until: object) -> None:
    if not callable(until):
        raise InvalidRequest("invalid_type", f"until must be a function, not {type(until).__name__}", field="until")


def _parse_states(value: object) -> tuple[State, ...]:
    if value is None:
        return tuple(State)
    values = (value,) if isinstance(value, str) or not isinstance(value, Collection) else value
    return tuple(dict.fromkeys(parse_choice(State, state, "state") for state in values))


def _check_submission(value: object) -> Submission:
    if not isinstance(value, Submission):
        raise InvalidRequest("invalid_type", f"a submission must be a Submission record, not {type(value).__name__}")
    return value


def _describe_error(error: FlowFabricError, id_: UUID) -> FlowFabricError:
    return with_ids(error, id=id_) if isinstance(error, Unavailable) else error


def _note_due_times(context: Context, outcome: object, submission: Submission) -> None:
    if not isinstance(outcome, Created):
        return
    for delay in (submission.delay, submission.policy.deadline):
        if delay is not None:
            context.due_in(span(delay))
    for due in (submission.ready_at, submission.deadline):
        if due is not None:
            context.due_at(due)


def _numbered_page(id: object, after: object, limit: object) -> NumberedPage:
    return NumberedPage(parse_id(id), validation.integer(after, "after", 0, 2**62), _page_limit(limit))


def _page_limit(limit: object) -> int:
    return validation.integer(limit, "limit", 1, 10 * validation.MAX_BATCH)
