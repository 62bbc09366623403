"""What a wait is made of: suspensions, their waitpoints, and the signals that came to them.

    waitpoint    created ─→ pending ─ suspend ─→ active ─ the suspension closes ─→ closed
                               └── expiry, close, the execution ends ──────────────↗
    suspension   open ─ signals, timeout, operator, the execution ends ─→ closed

A waitpoint belongs to its execution and outlives attempts. Its signals are rows. A signal that came before anybody
waited is bound to the suspension that binds its waitpoint; `counts` marks those that the condition is judged by.
A standing waitpoint is never closed by a resume: it returns to pending, and keeps the signals that no wait has used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from flowfabric.core.conditions import Condition
from flowfabric.core.evaluating import SignalFacts
from flowfabric.core.frozen import record
from flowfabric.core.states import BlockingReason


class SuspensionReason(StrEnum):
    """Why an execution is suspended, in the words of whoever suspends it."""

    WAITING_FOR_SIGNAL = "waiting_for_signal"
    WAITING_FOR_APPROVAL = "waiting_for_approval"
    WAITING_FOR_CALLBACK = "waiting_for_callback"
    WAITING_FOR_TOOL_RESULT = "waiting_for_tool_result"
    WAITING_FOR_OPERATOR_REVIEW = "waiting_for_operator_review"
    PAUSED_BY_POLICY = "paused_by_policy"
    PAUSED_BY_BUDGET = "paused_by_budget"
    STEP_BOUNDARY = "step_boundary"
    MANUAL_PAUSE = "manual_pause"


class OnTimeout(StrEnum):
    """What happens when a suspension's time is over."""

    FAIL = "fail"
    CANCEL = "cancel"
    EXPIRE = "expire"
    AUTO_RESUME = "auto_resume"
    ESCALATE = "escalate"


class Rest(StrEnum):
    """What becomes of the waitpoints that a satisfied AnyOf did not need."""

    CLOSE = "close"
    KEEP = "keep"


class Trigger(StrEnum):
    """What closed a suspension."""

    SIGNALS = "signals"
    TIMEOUT = "timeout"
    OPERATOR = "operator"
    ENDED = "ended"


class WaitpointKind(StrEnum):
    """Addressed by a token; standing under its name for the whole life; or internal: a child's end, a time."""

    ADDRESSED = "addressed"
    STANDING = "standing"
    CHILD = "child"
    TIMER = "timer"


class WaitpointState(StrEnum):
    """Open and unbound, bound to the open suspension, or closed for good."""

    PENDING = "pending"
    ACTIVE = "active"
    CLOSED = "closed"


class Effect(StrEnum):
    """What an accepted signal did."""

    APPENDED = "appended_to_waitpoint"
    SATISFIED = "resume_condition_satisfied"
    BUFFERED = "buffered_for_pending_waitpoint"


@record(frozen=True, slots=True, kw_only=True)
class TokenParts:
    """What the store keeps of a token: enough to mint the same one again with the key, and nothing to use."""

    kid: str
    nonce: bytes = field(repr=False)
    hash: bytes = field(repr=False)
    approver: str | None = None
    ends_at: datetime | None = None


@record(frozen=True, slots=True, kw_only=True)
class Waitpoint:
    """A slot that signals are delivered to. `suspension` is the number of the suspension that bound it last."""

    id: UUID
    execution_id: UUID
    key: str
    kind: WaitpointKind
    state: WaitpointState
    created_at: datetime
    suspension: int | None = None
    token: TokenParts | None = None
    expires_at: datetime | None = None
    child_id: UUID | None = None
    fires_at: datetime | None = None
    closed_at: datetime | None = None
    close_reason: str | None = None
    generation: int = 0

    @property
    def approver(self) -> str | None:
        return self.token.approver if self.token else None


@record(frozen=True, slots=True, kw_only=True)
class Suspension:
    """A pause of an execution with its condition; `number` counts the suspensions of the execution from 1."""

    id: UUID
    execution_id: UUID
    number: int
    generation: int
    epoch: int
    lease_id: UUID
    key: str | None
    digest: str
    condition: Condition
    reason: SuspensionReason
    rest: Rest
    opened_at: datetime
    timeout_at: datetime | None
    on_timeout: OnTimeout
    resume_delay: timedelta
    closed_at: datetime | None = None
    closed_by: Trigger | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One accepted signal, in its place of acceptance within the execution."""

    id: UUID
    execution_id: UUID
    seq: int
    waitpoint_id: UUID | None
    waitpoint: str
    name: str
    category: str
    source: str
    source_type: str
    source_identity: str
    correlation: str | None
    payload: bytes
    encoding: str
    key: str | None
    created_at: datetime | None
    accepted_at: datetime
    effect: Effect
    suspension: int | None
    counts: bool

    @property
    def facts(self) -> SignalFacts:
        """What a condition sees of it."""
        return SignalFacts(self.id, self.waitpoint, self.name, self.source, self.seq)


@record(frozen=True, slots=True)
class Binding:
    """Signals of an execution's waitpoints that now belong to a suspension: all of them, or only those that count."""

    execution_id: UUID
    number: int
    waitpoint_ids: tuple[UUID, ...]
    counting: tuple[int, ...]
    only_counting: bool


@record(frozen=True, slots=True)
class Unbinding:
    """Signals of an execution's waitpoints that no longer belong to a suspension and may count in a later one."""

    execution_id: UUID
    number: int
    waitpoint_ids: tuple[UUID, ...]


@record(frozen=True, slots=True, kw_only=True)
class WaitChanges:
    """What a decision writes beside the execution row."""

    opened: tuple[Suspension, ...] = ()
    changed: tuple[Suspension, ...] = ()
    added: tuple[Waitpoint, ...] = ()
    moved: tuple[Waitpoint, ...] = ()
    received: tuple[Signal, ...] = ()
    bound: tuple[Binding, ...] = ()
    unbound: tuple[Unbinding, ...] = ()


BLOCKING: Mapping[SuspensionReason, BlockingReason] = {
    SuspensionReason.WAITING_FOR_SIGNAL: BlockingReason.WAITING_FOR_SIGNAL,
    SuspensionReason.WAITING_FOR_APPROVAL: BlockingReason.WAITING_FOR_APPROVAL,
    SuspensionReason.WAITING_FOR_CALLBACK: BlockingReason.WAITING_FOR_CALLBACK,
    SuspensionReason.WAITING_FOR_TOOL_RESULT: BlockingReason.WAITING_FOR_TOOL_RESULT,
    SuspensionReason.WAITING_FOR_OPERATOR_REVIEW: BlockingReason.PAUSED_BY_OPERATOR,
    SuspensionReason.PAUSED_BY_POLICY: BlockingReason.PAUSED_BY_POLICY,
    SuspensionReason.PAUSED_BY_BUDGET: BlockingReason.WAITING_FOR_BUDGET,
    SuspensionReason.STEP_BOUNDARY: BlockingReason.WAITING_FOR_SIGNAL,
    SuspensionReason.MANUAL_PAUSE: BlockingReason.PAUSED_BY_OPERATOR,
}
