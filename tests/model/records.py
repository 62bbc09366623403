"""What the reference model remembers: executions with their leases, attempts, steps and events, as plain records.

The model uses the words of the contract (enumerations, requests and answers) and none of the engine's decisions.
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
    Signal,
    State,
    StateVector,
    TerminalOutcome,
    WorkerId,
)  # fmt: skip
from tests.model.waits import BLOCKED_BY, Slot, Wait

KEPT_EXPIRED = "lease_expired_reclaimable"
KEPT_REVOKED = "lease_revoked"
LEASED = "leased"


@dataclass
class Held:
    """The live lease."""

    id: UUID
    worker: WorkerId
    ttl: timedelta
    acquired_at: datetime
    expires_at: datetime
    resumed: bool


@dataclass
class Former:
    """The last lease that was lost or given up: the code that tells its holder why, and what answers a repeat."""

    fence: Fence
    code: str
    request: tuple[Any, ...] | None
    answer: Any


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
    """A recorded step; `struck_by` is the generation that it does not answer in any more."""

    name: str
    status: str
    payload: bytes
    generation: int
    struck_by: int | None = None


@dataclass
class EventRow:
    """One event, with the version that it produced."""

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
    """One execution. `body` is what a repeated submit is compared by."""

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
    lease: Held | None = None
    former: Former | None = None
    plain: bool = True

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
    signals: list[Signal] = field(default_factory=list)
    resumption: Resumption | None = None
    is_escalated: bool = False

    @property
    def wait(self) -> Wait | None:
        """The open suspension."""
        return next((wait for wait in self.waits if wait.closed_at is None), None)

    @property
    def version(self) -> int:
        """The number of its events."""
        return len(self.events)

    @property
    def fence(self) -> Fence | None:
        """The fence of the live lease, whether it has run out or not."""
        return Fence(self.id, self.epoch, self.lease.id) if self.lease else None

    @property
    def vector(self) -> StateVector:
        """The public vector, as the table of the specification has it."""
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
        """Why it is not running."""
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
