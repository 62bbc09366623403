"""`engine.executions`: submitting work and looking at it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from flowfabric.batching import run_batch
from flowfabric.core import limits
from flowfabric.core.errors import FlowFabricError, InvalidRequest, Unavailable
from flowfabric.core.ids import parse_id
from flowfabric.core.outcomes import Created, Submitted
from flowfabric.core.policy import DEFAULT_POLICY, Policy, span
from flowfabric.core.records import Event, RecordedStep
from flowfabric.core.requests import Submission
from flowfabric.core.states import State
from flowfabric.core.views import Description, Glance, Outcome, Page, Summary, Tally
from flowfabric.engine.awaiting import Awaiting
from flowfabric.engine.context import Context
from flowfabric.engine.ending import watched
from flowfabric.engine.joining import Joining
from flowfabric.engine.listing import listing_page
from flowfabric.engine.routes import route_ids
from flowfabric.ops import reading
from flowfabric.ops.submit import SUBMIT, Arrival
from flowfabric.ops.tags import set_tags
from flowfabric.store.transaction import Answer
from flowfabric.wakeups.bells import end_of

_NO_TAGS: Mapping[str, str] = {}


class Executions(Joining, Awaiting):
    """Submits executions, and reads what became of them."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def submit(
        self, kind: str | Submission, payload: bytes = b"", *, encoding: str = "json", lane: str = "default",
        priority: int = 0, requires: Collection[str] = (), policy: Policy = DEFAULT_POLICY,
        tags: Mapping[str, str] = _NO_TAGS,
        id: UUID | str | None = None, key: str | None = None, ready_at: datetime | None = None,
        delay: limits.Duration | None = None, deadline: datetime | None = None, signals: Sequence[str] = (),
    ) -> Submitted:  # fmt: skip
        """Stores one execution: of a kind, or as a `Submission` describes it whole.

        Repeated with the same id or key and the same body it answers `Duplicate`; with another body it raises
        `Conflict` with code `idempotency_mismatch`. If the store does not answer, the `id` among the fields of the
        error makes repeating it harmless.
        """
        submission = kind if isinstance(kind, Submission) else Submission(
            kind=kind, payload=payload, encoding=encoding, lane=lane, priority=priority, requires=requires,
            policy=policy, tags=tags, id=id, key=key, ready_at=ready_at, delay=delay, deadline=deadline,
            signals=signals,
        )  # fmt: skip
        [arrival] = await self._arrivals([submission])
        return await self._stored(arrival)

    async def run(self, submission: Submission, enough: Callable[[Glance], bool]) -> tuple[UUID, Glance]:
        """Stores one execution and waits for it, as `submit` and `wait_until` do; answers its id with the glance. The
        end is listened for from before it is stored, so nobody has to look whether it was missed."""
        [arrival] = await self._arrivals([_submission(submission)])
        wakeups, look = self._context.wakeups, self._look(arrival.id, enough)
        with wakeups.bell([end_of(arrival.id)]) as bell:
            answer = await self._stored(arrival)
            if isinstance(answer, Created):
                return answer.id, await watched(wakeups, bell, look)
        found = await self.wait_until(answer.id, enough)
        assert found is not None, "there was no timeout"
        return answer.id, found

    async def _stored(self, arrival: Arrival) -> Submitted:
        try:
            answer = await self._context.one(SUBMIT, arrival)
        except Unavailable as error:
            raise _with_id(error, arrival.id) from error
        _hint(self._context, answer, arrival.submission)
        return answer

    async def submit_many(self, submissions: Sequence[Submission]) -> list[Submitted | FlowFabricError]:
        """Stores up to 1,000 executions; each is answered for itself, refusals as values in their place."""
        arrivals = await self._arrivals([_submission(item) for item in limits.batch(submissions, "submissions")])
        found = await run_batch(self._context.store, self._context.namespace, SUBMIT, arrivals)
        answers = [
            _with_id(answer, arrival.id) if isinstance(answer, Unavailable) else answer
            for answer, arrival in zip(found, arrivals, strict=True)
        ]
        for answer, submission in zip(answers, submissions, strict=True):
            _hint(self._context, answer, submission)
        return answers

    async def describe(self, id: UUID | str) -> Description:
        """Everything about one execution."""
        return await self._read(reading.describe, parse_id(id))

    async def result(self, id: UUID | str) -> Outcome | None:
        """How the execution ended, with its result; None while it has not."""
        return await self._read(reading.result, parse_id(id))

    async def history(self, id: UUID | str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """The events of the execution with a version above `after`, in order."""
        return await self._read(reading.history, parse_id(id), *_window(after, limit))

    async def steps(self, id: UUID | str, *, after: int = 0, limit: int = 1000) -> list[RecordedStep]:
        """The recorded steps that answer at present, with a sequence number above `after`, in order."""
        return await self._read(reading.steps, parse_id(id), *_window(after, limit))

    async def children(self, id: UUID | str, *, after: UUID | str | None = None, limit: int = 1000) -> list[Summary]:
        """The children of the execution with an id above `after`, by id; detached ones belong to nobody."""
        last = None if after is None else parse_id(after, "after")
        return await self._read(reading.children, parse_id(id), last, _window(0, limit)[1])

    async def list(
        self, *, state: State | str | None = None, lane: str | None = None, kind: str | None = None,
        tags: Mapping[str, str] | None = None, created_from: datetime | None = None,
        created_until: datetime | None = None, limit: int = 100, cursor: str | None = None,
    ) -> Page:  # fmt: skip
        """One page of executions that match all filters, newest id first; pass `next_cursor` on to get the next."""
        filters: dict[str, object] = {"state": state, "lane": lane, "kind": kind, "tags": tags}
        filters |= {"created_from": created_from, "created_until": created_until}
        return await listing_page(self._context, filters, limit, cursor)

    async def count(self) -> dict[State, Tally]:
        """How many executions are in each state; above 10,000 an estimate that says so."""
        return await self._context.store.read(lambda tx: reading.count_by_state(tx, self._context.namespace))

    async def set_tags(self, id: UUID | str, tags: Mapping[str, str | None]) -> dict[str, str]:
        """Sets these tags, None removes one; answers all tags. Allowed in every state."""
        found = parse_id(id)
        if not isinstance(tags, Mapping):
            raise InvalidRequest("invalid_type", f"tags must be a mapping, not {type(tags).__name__}", field="tags")
        limits.tags({key: "" if value is None else value for key, value in tags.items()})
        return await self._context.store.run(lambda tx: set_tags(tx, self._context.namespace, found, tags))

    async def _read(self, body: Callable[..., Coroutine[Any, Any, Answer]], id_: UUID, *rest: Any) -> Answer:
        return await self._context.store.read(lambda tx: body(tx, self._context.namespace, id_, *rest))

    async def _arrivals(self, submissions: Sequence[Submission]) -> Sequence[Arrival]:
        context = self._context
        routes = await route_ids(context, submissions)
        return [
            Arrival(item.id if isinstance(item.id, UUID) else context.ids.mint(), route, item)
            for item, route in zip(submissions, routes, strict=True)
        ]


def _submission(item: object) -> Submission:
    if not isinstance(item, Submission):
        raise InvalidRequest("invalid_type", f"a submission must be a Submission record, not {type(item).__name__}")
    return item


def _hint(context: Context, answer: object, submission: Submission) -> None:
    if not isinstance(answer, Created):
        return
    for delay in (submission.delay, submission.policy.deadline):
        if delay is not None:
            context.due_in(span(delay))
    for due in (submission.ready_at, submission.deadline):
        if due is not None:
            context.due_at(due)


def _with_id(error: Unavailable, id_: UUID) -> Unavailable:
    """The same error with the id that was minted for the submission, by which it can be repeated."""
    return Unavailable(error.code, error.message, **{**error.fields, "id": id_})


def _window(after: object, limit: object) -> tuple[int, int]:
    return limits.whole(after, "after", 0, 2**62), limits.whole(limit, "limit", 1, 10 * limits.BATCH)
