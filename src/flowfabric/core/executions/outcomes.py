"""The values that successful operations return. An operation that is refused raises an error instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from flowfabric.core.executions.records import Execution, Fence, FormerLease, Resumption, WorkerId
from flowfabric.core.executions.states import PublicState, State
from flowfabric.core.fast_dataclass import record
from flowfabric.core.tokens.secret import Secret
from flowfabric.core.waits.evaluate import Counted
from flowfabric.core.waits.records import Effect, StoredSignal, Trigger

# The bits of the epoch in `Lease.ordered_epoch`; the era is above them.
_EPOCH_BITS = 40


@record(frozen=True, slots=True)
class Created:
    """The submission was stored as a new execution with the id `id`."""

    id: UUID
    state: State


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The same submission was stored before; `id` is the id of its execution. Nothing was written."""

    id: UUID


Submitted = Created | Duplicate


@record(frozen=True, slots=True, kw_only=True)
class Lease:
    """A worker's ownership of one attempt, with everything needed to run it.

    `origin` is fresh, resumed, retry, reclaimed or replayed. `resumption` has the id of the last closed suspension, and
    what closed it. `has_journal` is False only in the reply to the claim that starts the first attempt: no code has run
    before, so no step is recorded. In every other reply it is True, also from `held`, because steps may be recorded.
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
    is_standalone: bool
    has_journal: bool
    resumption: Resumption | None = None
    cancel_due_at: datetime | None = None
    era: int = 0

    @property
    def execution_id(self) -> UUID:
        """The execution that the lease is for."""
        return self.fence.execution_id

    @property
    def epoch(self) -> int:
        """The epoch of the lease. Every later lease has a higher epoch, unless the store went back in between."""
        return self.fence.epoch

    @property
    def ordered_epoch(self) -> int:
        """The era of the store and the epoch as one number, to fence writes to other systems.

        Every later lease has a higher number, also after a failover to an asynchronous standby.
        """
        return (self.era << _EPOCH_BITS) + self.fence.epoch


@dataclass(frozen=True, slots=True)
class Renewed:
    """The lease is valid until `expires_at`.

    If `cancel_due_at` is set, the worker must stop and clean up; the execution is cancelled at that time.
    """

    expires_at: datetime
    cancel_due_at: datetime | None = None

    @property
    def cancel_requested(self) -> bool:
        """True if cancellation was requested."""
        return self.cancel_due_at is not None


@record(frozen=True, slots=True)
class Ended:
    """The execution has ended; `state` is its final state."""

    state: State


@dataclass(frozen=True, slots=True)
class RetryScheduled:
    """The attempt failed. The next attempt may start at the time `at`.

    It is retry number `retry` of at most `max_retries`. These numbers are zero in the reply to a repeated request.
    """

    at: datetime
    retry: int = field(default=0, compare=False)
    max_retries: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Delayed:
    """The lease was given up. The same attempt continues at the time `until`."""

    until: datetime


@dataclass(frozen=True, slots=True)
class Released:
    """The lease was given up. The same attempt continues as soon as a worker claims it."""


@dataclass(frozen=True, slots=True)
class Revoked:
    """The lease `lease_id` was revoked. `epoch` is the new epoch of the execution."""

    lease_id: UUID
    epoch: int


@dataclass(frozen=True, slots=True)
class AlreadySatisfied:
    """Nothing had to be done, and nothing was written. `reason` gives the cause."""

    reason: str


@dataclass(frozen=True, slots=True)
class Held:
    """The execution is held until an operator unholds it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Continued:
    """The lease was given up. The next generation starts with its new input as soon as a worker claims it."""


@dataclass(frozen=True, slots=True)
class Unheld:
    """The execution is no longer held; `state` is its new state."""

    state: State


@dataclass(frozen=True, slots=True)
class PriorityChanged:
    """The priority of the execution before and after the change, both in the range 0 to 9000."""

    old: int
    new: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """The execution runs again, with `generation` as its new generation.

    `revived` is the number of skipped members of its flow that this call brought back.
    """

    generation: int
    state: PublicState
    revived: int = 0


@dataclass(frozen=True, slots=True)
class OpenWaitpoint:
    """A waitpoint and, if it has one, the token that allows signalling it."""

    id: UUID
    key: str
    token: Secret | None
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class Suspended:
    """The lease was given up. The execution continues when the condition of the suspension holds."""

    suspension_id: UUID
    waitpoints: tuple[OpenWaitpoint, ...]

    def token(self, key: str) -> Secret | None:
        """Return the token of the waitpoint with this key."""
        return next(item.token for item in self.waitpoints if item.key == key)


@dataclass(frozen=True, slots=True)
class Satisfied:
    """The condition already holds: the suspension is closed, and the worker keeps its lease."""

    suspension_id: UUID
    by: Trigger
    signals: tuple[StoredSignal, ...] = ()


@dataclass(frozen=True, slots=True)
class Accepted:
    """The signal is stored with the id `signal_id`. `counted` has the value None if no suspension waits for it yet."""

    signal_id: UUID
    effect: Effect
    counted: Counted | None


@dataclass(frozen=True, slots=True)
class DuplicateSignal:
    """The signal was accepted before; `signal_id` is its id. Nothing was written."""

    signal_id: UUID


@dataclass(frozen=True, slots=True)
class Resumed:
    """The suspension is closed. `state` shows whether the execution continues immediately or after a delay."""

    suspension_id: UUID
    state: PublicState


@dataclass(frozen=True, slots=True)
class Escalated:
    """The timeout of the suspension has passed, and an operator must decide what happens.

    The execution stays suspended.
    """

    suspension_id: UUID


@dataclass(frozen=True, slots=True)
class WaitpointClosed:
    """The waitpoint accepts no further signals; `already` is True if it was closed before this call."""

    waitpoint_id: UUID
    already: bool


def lease_of(execution: Execution, *, has_journal: bool = True) -> Lease:
    """Return the live lease of an execution in the form that its worker receives.

    Only the claim that starts the first attempt knows that there is no journal.
    """
    held, fence = execution.lease, execution.fence
    assert held is not None and fence is not None, "only a leased execution has a lease to show"
    return Lease(
        fence=fence,
        namespace=execution.namespace,
        lane=execution.lane,
        kind=execution.kind,
        priority=execution.priority,
        payload=execution.payload,
        encoding=execution.encoding,
        tags=execution.tags,
        worker=held.worker,
        origin="resumed" if held.resumed else execution.attempt_origin.value,
        attempt_index=execution.attempt_index,
        generation=execution.generation,
        acquired_at=held.acquired_at,
        expires_at=held.expires_at,
        ttl=held.ttl,
        deadline_at=execution.deadline_at,
        attempt_timeout_at=execution.attempt_timeout_at,
        is_standalone=execution.is_standalone,
        has_journal=has_journal,
        resumption=execution.resumption,
        cancel_due_at=execution.cancel_request.due_at if execution.cancel_request else None,
    )


def repeat_outcome(former: FormerLease) -> Ended | RetryScheduled | Delayed | Released:
    """Rebuild the outcome of the request that ended this lease, to return it for a repeat of that request."""
    if former.end in _ENDED:
        return Ended(_ENDED[former.end])
    if former.until is None:
        return Released()
    return RetryScheduled(former.until) if former.end == "retry" else Delayed(former.until)


_ENDED = {"complete": State.COMPLETED, "fail": State.FAILED, "cancel": State.CANCELLED}
