"""The states of an execution, and the public fields that are derived from the stored fields.

The store holds `state`, `blocking_reason`, `attempt_state` and, while active, `ownership`. The other public fields are
derived from these four:

    state        lifecycle_phase  eligibility_state          public_state
    waiting      runnable         eligible_now               waiting, or resumable if the attempt was interrupted
    delayed      runnable         not_eligible_until_time    delayed
    blocked      runnable         blocked_by_…               waiting_children, rate_limited or waiting
    active       active           not_applicable             active
    suspended    suspended        not_applicable             suspended
    completed …  terminal         not_applicable             the same word
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """The stored state of an execution. Transitions check it, and the indexes of the store contain it."""

    WAITING = "waiting"
    DELAYED = "delayed"
    BLOCKED = "blocked"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SKIPPED = "skipped"

    @property
    def is_terminal(self) -> bool:
        """True for states in which the execution has ended."""
        return self in TERMINAL


TERMINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED, State.EXPIRED, State.SKIPPED})
RUNNABLE = frozenset({State.WAITING, State.DELAYED, State.BLOCKED})
LIVE = frozenset(State) - TERMINAL


class AttemptState(StrEnum):
    """The state of the current attempt, or the kind of the attempt that is pending."""

    NONE = "none"
    PENDING_FIRST = "pending_first_attempt"
    RUNNING = "running_attempt"
    INTERRUPTED = "attempt_interrupted"
    PENDING_RETRY = "pending_retry_attempt"
    PENDING_RECLAIM = "pending_reclaim_attempt"
    PENDING_REPLAY = "pending_replay_attempt"
    TERMINAL = "attempt_terminal"


class Ownership(StrEnum):
    """The owner of an active execution: a live lease, or none while it is kept for a hand-off."""

    LEASED = "leased"
    EXPIRED = "lease_expired_reclaimable"
    REVOKED = "lease_revoked"


class BlockingReason(StrEnum):
    """Why an execution is not running."""

    NONE = "none"
    WAITING_FOR_WORKER = "waiting_for_worker"
    WAITING_FOR_RETRY_BACKOFF = "waiting_for_retry_backoff"
    WAITING_FOR_RESUME_DELAY = "waiting_for_resume_delay"
    WAITING_FOR_DELAY = "waiting_for_delay"
    WAITING_FOR_SIGNAL = "waiting_for_signal"
    WAITING_FOR_APPROVAL = "waiting_for_approval"
    WAITING_FOR_CALLBACK = "waiting_for_callback"
    WAITING_FOR_TOOL_RESULT = "waiting_for_tool_result"
    WAITING_FOR_CHILDREN = "waiting_for_children"
    WAITING_FOR_BUDGET = "waiting_for_budget"
    WAITING_FOR_QUOTA = "waiting_for_quota"
    WAITING_FOR_CAPABLE_WORKER = "waiting_for_capable_worker"
    WAITING_FOR_LOCALITY_MATCH = "waiting_for_locality_match"
    PAUSED_BY_OPERATOR = "paused_by_operator"
    PAUSED_BY_POLICY = "paused_by_policy"
    PAUSED_BY_FLOW_CANCEL = "paused_by_flow_cancel"


class LifecyclePhase(StrEnum):
    """The coarse phase of an execution's life."""

    RUNNABLE = "runnable"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    TERMINAL = "terminal"


class Eligibility(StrEnum):
    """Whether a runnable execution may be claimed, and if not, what prevents it."""

    ELIGIBLE_NOW = "eligible_now"
    NOT_UNTIL_TIME = "not_eligible_until_time"
    BLOCKED_BY_DEPENDENCIES = "blocked_by_dependencies"
    BLOCKED_BY_BUDGET = "blocked_by_budget"
    BLOCKED_BY_QUOTA = "blocked_by_quota"
    BLOCKED_BY_ROUTE = "blocked_by_route"
    BLOCKED_BY_LANE_STATE = "blocked_by_lane_state"
    BLOCKED_BY_OPERATOR = "blocked_by_operator"
    NOT_APPLICABLE = "not_applicable"


class TerminalOutcome(StrEnum):
    """How a terminal execution ended."""

    NONE = "none"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SKIPPED = "skipped"


class PublicState(StrEnum):
    """The state in one word, as users see it."""

    WAITING = "waiting"
    DELAYED = "delayed"
    RATE_LIMITED = "rate_limited"
    WAITING_CHILDREN = "waiting_children"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    RESUMABLE = "resumable"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class StateVector:
    """The seven public fields of an execution's state, all derived from the stored ones."""

    lifecycle_phase: LifecyclePhase
    ownership_state: str
    eligibility_state: Eligibility
    blocking_reason: BlockingReason
    terminal_outcome: TerminalOutcome
    attempt_state: AttemptState
    public_state: PublicState


def derive_vector(
    state: State, blocking_reason: BlockingReason, attempt_state: AttemptState, ownership: Ownership | None
) -> StateVector:
    """Derive the public state fields of an execution from its four stored fields."""
    eligibility = _eligibility(state, blocking_reason)
    return StateVector(
        lifecycle_phase=_phase(state),
        ownership_state=ownership.value if ownership else "unowned",
        eligibility_state=eligibility,
        blocking_reason=blocking_reason,
        terminal_outcome=_OUTCOMES.get(state, TerminalOutcome.NONE),
        attempt_state=attempt_state,
        public_state=_public_state(state, attempt_state, eligibility),
    )


def _phase(state: State) -> LifecyclePhase:
    if state in TERMINAL:
        return LifecyclePhase.TERMINAL
    if state in RUNNABLE:
        return LifecyclePhase.RUNNABLE
    return LifecyclePhase(state.value)


def _eligibility(state: State, blocking_reason: BlockingReason) -> Eligibility:
    match state:
        case State.WAITING:
            return Eligibility.ELIGIBLE_NOW
        case State.DELAYED:
            return Eligibility.NOT_UNTIL_TIME
        case State.BLOCKED:
            return _BLOCKED_BY[blocking_reason]
        case _:
            return Eligibility.NOT_APPLICABLE


def _public_state(state: State, attempt_state: AttemptState, eligibility: Eligibility) -> PublicState:
    if state is State.WAITING and attempt_state is AttemptState.INTERRUPTED:
        return PublicState.RESUMABLE
    if state is State.BLOCKED:
        return _BLOCKED_SHOWN_AS.get(eligibility, PublicState.WAITING)
    return PublicState(state.value)


_OUTCOMES = {
    State.COMPLETED: TerminalOutcome.SUCCESS,
    State.FAILED: TerminalOutcome.FAILED,
    State.CANCELLED: TerminalOutcome.CANCELLED,
    State.EXPIRED: TerminalOutcome.EXPIRED,
    State.SKIPPED: TerminalOutcome.SKIPPED,
}

_BLOCKED_BY = {
    BlockingReason.WAITING_FOR_CHILDREN: Eligibility.BLOCKED_BY_DEPENDENCIES,
    BlockingReason.WAITING_FOR_BUDGET: Eligibility.BLOCKED_BY_BUDGET,
    BlockingReason.WAITING_FOR_QUOTA: Eligibility.BLOCKED_BY_QUOTA,
    BlockingReason.WAITING_FOR_CAPABLE_WORKER: Eligibility.BLOCKED_BY_ROUTE,
    BlockingReason.WAITING_FOR_LOCALITY_MATCH: Eligibility.BLOCKED_BY_ROUTE,
    BlockingReason.PAUSED_BY_POLICY: Eligibility.BLOCKED_BY_LANE_STATE,
    BlockingReason.PAUSED_BY_OPERATOR: Eligibility.BLOCKED_BY_OPERATOR,
    BlockingReason.PAUSED_BY_FLOW_CANCEL: Eligibility.BLOCKED_BY_OPERATOR,
}

_BLOCKED_SHOWN_AS = {
    Eligibility.BLOCKED_BY_DEPENDENCIES: PublicState.WAITING_CHILDREN,
    Eligibility.BLOCKED_BY_BUDGET: PublicState.RATE_LIMITED,
    Eligibility.BLOCKED_BY_QUOTA: PublicState.RATE_LIMITED,
}
