"""The records of the reference model: executions with their leases, attempts, steps and events.

The model uses the enumerations, requests and outcomes of the contract, but none of the engine's decisions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from flowfabric.engine import (
    AttemptOutcome,
    AttemptState,
    BlockingReason,
    Eligibility,
    Fence,
    LifecyclePhase,
    Policy,
    PublicState,
    Resumption,
    State,
    StateVector,
    StoredSignal,
    TerminalOutcome,
    WorkerId,
)
from tests.model.wait_records import BLOCKED_BY, Slot, Wait

KEPT_EXPIRED = "lease_expired_reclaimable"
KEPT_REVOKED = "lease_revoked"
LEASED = "leased"


@dataclass
class LiveLease:
    """The live lease."""

    id: UUID
    worker: WorkerId
    ttl: timedelta
    acquired_at: datetime
    expires_at: datetime
    resumed: bool


@dataclass
class FormerLease:
    """The last lease that ended, with the error code that its former holder gets and the outcome of the request that
    ended it.
    """

    fence: Fence
    code: str
    request: tuple[Any, ...] | None
    outcome: Any


@dataclass
class AttemptRow:
    """An attempt that has ended."""

    index: int
    generation: int
    origin: str
    started_at: datetime
    ended_at: datetime
    outcome: AttemptOutcome
    result: bytes | None
    category: str | None


@dataclass
class StepRow:
    """A recorded step. `struck_by` is the generation from which the step is no longer valid."""

    name: str
    status: str
    payload: bytes
    generation: int
    struck_by: int | None = None


@dataclass
class EventRow:
    """An event, with the version of the execution after the event."""

    version: int
    family: str
    name: str
    at: datetime
    state: State
    epoch: int
    generation: int
    attempt_index: int
    lease_id: UUID | None
    ends_lease: bool
    principal: str | None
    reason: str | None


@dataclass
class Execution:
    """An execution. A submit with the same key or id is a duplicate if its body equals `body`."""

    id: UUID
    namespace: str
    lane: str
    kind: str
    requires: frozenset[str]
    payload: bytes
    policy: Policy
    priority: int
    tags: dict[str, str]
    body: tuple[Any, ...]
    created_at: datetime
    state: State
    ready_at: datetime | None
    deadline_at: datetime | None
    declared: tuple[str, ...] = ()

    attempt_state: AttemptState = AttemptState.PENDING_FIRST
    attempt_index: int = 0
    origin: str = "fresh"
    attempt_started_at: datetime | None = None
    attempt_timeout_at: datetime | None = None
    time_left: timedelta | None = None
    ownership: str | None = None
    lease: LiveLease | None = None
    former: FormerLease | None = None
    is_standalone: bool = True

    epoch: int = 0
    generation: int = 0
    retries: int = 0
    reclaims: int = 0
    replays: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    purge_at: datetime | None = None
    percent: int | None = None
    message: str | None = None
    category: str | None = None
    cancelled_by: str | None = None
    cancel_reason: str | None = None
    hold_reason: str | None = None

    attempts: list[AttemptRow] = field(default_factory=list)
    steps: list[StepRow] = field(default_factory=list)
    events: list[EventRow] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    signals: list[StoredSignal] = field(default_factory=list)
    resumption: Resumption | None = None
    is_escalated: bool = False

    @property
    def wait(self) -> Wait | None:
        """The open suspension."""
        return next((wait for wait in self.waits if wait.closed_at is None), None)

    @property
    def version(self) -> int:
        """The number of events."""
        return len(self.events)

    @property
    def fence(self) -> Fence | None:
        """The fence of the live lease, even if that lease has expired."""
        return Fence(self.id, self.epoch, self.lease.id) if self.lease else None

    @property
    def vector(self) -> StateVector:
        """The public state vector, derived by the table in the specification."""
        return StateVector(
            lifecycle_phase=LifecyclePhase(_PHASES.get(self.state, self.state.value)),
            ownership_state=self.ownership or "unowned",
            eligibility_state=_ELIGIBILITY.get(self.state, Eligibility.NOT_APPLICABLE),
            blocking_reason=self.blocking_reason,
            terminal_outcome=OUTCOMES.get(self.state, TerminalOutcome.NONE),
            attempt_state=self.attempt_state,
            public_state=self._public_state(),
        )

    @property
    def blocking_reason(self) -> BlockingReason:
        """The reason why the execution is not running."""
        match self.state:
            case State.WAITING:
                return BlockingReason.WAITING_FOR_WORKER
            case State.DELAYED if self.attempt_state is AttemptState.PENDING_RETRY:
                return BlockingReason.WAITING_FOR_RETRY_BACKOFF
            case State.DELAYED if self.resumption:
                return BlockingReason.WAITING_FOR_RESUME_DELAY
            case State.DELAYED:
                return BlockingReason.WAITING_FOR_DELAY
            case State.SUSPENDED if self.wait and not self.is_escalated:
                return BLOCKED_BY[self.wait.reason]
            case State.SUSPENDED:
                return BlockingReason.PAUSED_BY_OPERATOR
            case State.BLOCKED:
                return BlockingReason.PAUSED_BY_OPERATOR
            case State.ACTIVE if self.lease is None:
                return BlockingReason.WAITING_FOR_WORKER
            case _:
                return BlockingReason.NONE

    def _public_state(self) -> PublicState:
        if self.state is State.WAITING and self.attempt_state is AttemptState.INTERRUPTED:
            return PublicState.RESUMABLE
        return PublicState.WAITING if self.state is State.BLOCKED else PublicState(self.state.value)


_PHASES = {
    State.WAITING: "runnable", State.DELAYED: "runnable", State.BLOCKED: "runnable", State.COMPLETED: "terminal",
    State.FAILED: "terminal", State.CANCELLED: "terminal", State.EXPIRED: "terminal", State.SKIPPED: "terminal",
}  # fmt: skip
_ELIGIBILITY = {
    State.WAITING: Eligibility.ELIGIBLE_NOW,
    State.DELAYED: Eligibility.NOT_UNTIL_TIME,
    State.BLOCKED: Eligibility.BLOCKED_BY_OPERATOR,
}
OUTCOMES = {
    State.COMPLETED: TerminalOutcome.SUCCESS, State.FAILED: TerminalOutcome.FAILED,
    State.CANCELLED: TerminalOutcome.CANCELLED, State.EXPIRED: TerminalOutcome.EXPIRED,
    State.SKIPPED: TerminalOutcome.SKIPPED,
}  # fmt: skip
