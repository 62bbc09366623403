"""What operations answer. Every answer is a value; what is refused is raised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from flowfabric.core.evaluating import Counted
from flowfabric.core.records import Execution, Fence, FormerLease, Resumption, WorkerId
from flowfabric.core.secret import Secret
from flowfabric.core.states import PublicState, State
from flowfabric.core.waits import Effect, Signal, Trigger


@dataclass(frozen=True, slots=True)
class Created:
    """The submission is stored under this id."""

    id: UUID
    state: State


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The same submission was stored before, under this id; nothing was written."""

    id: UUID


Submitted = Created | Duplicate


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A worker's ownership of one attempt, with everything it needs to work on it.

    `origin` tells how it came about: fresh, resumed, retry, reclaimed or replayed; `resumption`, if a suspension was
    closed, which one and by what.
    """

    fence: Fence
    namespace: str
    lane: str
    kind: str
    priority: int
    payload: bytes
    encoding: str
    tags: Mapping[str, str]
    worker: WorkerId
    origin: str
    attempt_index: int
    generation: int
    acquired_at: datetime
    expires_at: datetime
    ttl: timedelta
    deadline_at: datetime | None
    attempt_timeout_at: datetime | None
    plain: bool
    resumption: Resumption | None = None
    cancel_due_at: datetime | None = None

    @property
    def execution_id(self) -> UUID:
        """The execution that the lease is for."""
        return self.fence.execution_id

    @property
    def epoch(self) -> int:
        """The epoch of the lease; whoever comes later has a higher one."""
        return self.fence.epoch


@dataclass(frozen=True, slots=True)
class Renewed:
    """The lease is now good until then. With a time in `cancel_due_at` the worker is asked to stop and clean up: what
    has not ended by then is cancelled."""

    expires_at: datetime
    cancel_due_at: datetime | None = None

    @property
    def cancel_requested(self) -> bool:
        """True if the execution was asked to end."""
        return self.cancel_due_at is not None


@dataclass(frozen=True, slots=True)
class Ended:
    """The execution is terminal, in this state."""

    state: State


@dataclass(frozen=True, slots=True)
class RetryScheduled:
    """The attempt failed; the next one may start then."""

    at: datetime


@dataclass(frozen=True, slots=True)
class Delayed:
    """The lease was given up; the same attempt goes on then."""

    until: datetime


@dataclass(frozen=True, slots=True)
class Released:
    """The lease was given up; the same attempt goes on as soon as a worker takes it."""


@dataclass(frozen=True, slots=True)
class Revoked:
    """The lease with this id was taken away; the execution is now at this epoch."""

    lease_id: UUID
    epoch: int


@dataclass(frozen=True, slots=True)
class AlreadySatisfied:
    """Nothing had to be done, and nothing was written; the reason says why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Held:
    """The execution is blocked by an operator until it is unheld."""

    reason: str


@dataclass(frozen=True, slots=True)
class Continued:
    """The lease was given up; the execution goes on from the start, as its next generation with its new input, as soon
    as a worker takes it."""


@dataclass(frozen=True, slots=True)
class Unheld:
    """The execution is no longer held; it is now in this state."""

    state: State


@dataclass(frozen=True, slots=True)
class PriorityChanged:
    """The priority before and after, clamped to 0..9000."""

    old: int
    new: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """The execution runs again, as this generation."""

    generation: int
    state: PublicState


@dataclass(frozen=True, slots=True)
class OpenWaitpoint:
    """A waitpoint and its token, which whoever holds it may signal with; None where there is none to show."""

    id: UUID
    key: str
    token: Secret | None
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class Suspended:
    """The lease was given up; the execution goes on when the condition of this suspension holds."""

    suspension_id: UUID
    waitpoints: tuple[OpenWaitpoint, ...]

    def token(self, key: str) -> Secret | None:
        """The token of the waitpoint with this key."""
        return next(item.token for item in self.waitpoints if item.key == key)


@dataclass(frozen=True, slots=True)
class Satisfied:
    """There is nothing to wait for: the suspension is closed by this, with these signals. The lease is kept."""

    suspension_id: UUID
    by: Trigger
    signals: tuple[Signal, ...] = ()


@dataclass(frozen=True, slots=True)
class Accepted:
    """The signal is stored under this id. `counted` says whether it helped; None if nobody waited yet."""

    signal_id: UUID
    effect: Effect
    counted: Counted | None


@dataclass(frozen=True, slots=True)
class DuplicateSignal:
    """The signal was accepted before, under this id; nothing was written."""

    signal_id: UUID


@dataclass(frozen=True, slots=True)
class Resumed:
    """The suspension is closed and the execution goes on; `state` tells whether at once or after a delay."""

    suspension_id: UUID
    state: PublicState


@dataclass(frozen=True, slots=True)
class Escalated:
    """The timeout has passed and an operator must decide; the execution stays suspended."""

    suspension_id: UUID


@dataclass(frozen=True, slots=True)
class WaitpointClosed:
    """The waitpoint takes no more signals; `already` says that it took none before."""

    waitpoint_id: UUID
    already: bool


def lease_of(execution: Execution) -> Lease:
    """The lease that is live on an execution, as its worker sees it."""
    held, fence = execution.lease, execution.fence
    assert held is not None and fence is not None, "only a leased execution has a lease to show"
    return Lease(
        fence=fence, namespace=execution.namespace, lane=execution.lane, kind=execution.kind,
        priority=execution.priority, payload=execution.payload, encoding=execution.encoding, tags=execution.tags,
        worker=held.worker, origin="resumed" if held.resumed else execution.attempt_origin.value,
        attempt_index=execution.attempt_index, generation=execution.generation, acquired_at=held.acquired_at,
        expires_at=held.expires_at, ttl=held.ttl, deadline_at=execution.deadline_at,
        attempt_timeout_at=execution.attempt_timeout_at, plain=execution.plain, resumption=execution.resumption,
        cancel_due_at=execution.cancel_request.due_at if execution.cancel_request else None,
    )  # fmt: skip


def answer_again(former: FormerLease) -> Ended | RetryScheduled | Delayed | Released:
    """The answer that was given when this lease was given up."""
    if former.end in _ENDED:
        return Ended(_ENDED[former.end])
    if former.until is None:
        return Released()
    return RetryScheduled(former.until) if former.end == "retry" else Delayed(former.until)


_ENDED = {"complete": State.COMPLETED, "fail": State.FAILED, "cancel": State.CANCELLED}
