"""Records of waits: suspensions, their waitpoints, and the signals that arrived there.

    waitpoint    created ─→ pending ─ suspend ─→ active ─ the suspension closes ─→ closed
                               └── expiry, close, the execution ends ──────────────↗
    suspension   open ─ signals, timeout, operator, the execution ends ─→ closed

A waitpoint belongs to its execution and outlives attempts. Each signal is a row. A signal may arrive before a
suspension; it is bound to the suspension that later binds its waitpoint. `counts` marks the signals that count towards
the condition. When a suspension closes, its standing waitpoints become pending again and keep their unused signals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID, uuid5

from flowfabric.core.executions.states import BlockingReason
from flowfabric.core.fast_dataclass import record, replace
from flowfabric.core.waits.conditions import Condition
from flowfabric.core.waits.evaluate import SignalFacts

# Suspensions are numbered from 1. A signal of this suspension was skipped, because the task could not read it.
SKIPPED = 0


class SuspensionReason(StrEnum):
    """Why a worker suspends its execution."""

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
    """What happens when a suspension times out."""

    FAIL = "fail"
    CANCEL = "cancel"
    EXPIRE = "expire"
    AUTO_RESUME = "auto_resume"
    ESCALATE = "escalate"


class UnusedWaitpoints(StrEnum):
    """What happens to the waitpoints that a satisfied AnyOf did not need."""

    CLOSE = "close"
    KEEP = "keep"


class Trigger(StrEnum):
    """What closed a suspension."""

    SIGNALS = "signals"
    TIMEOUT = "timeout"
    OPERATOR = "operator"
    ENDED = "ended"


class WaitpointKind(StrEnum):
    """Who sends the signals of a waitpoint.

    Holders of a token signal addressed waitpoints. Senders signal standing waitpoints by name, during the whole life of
    the execution. The engine signals child and timer waitpoints.
    """

    ADDRESSED = "addressed"
    STANDING = "standing"
    CHILD = "child"
    TIMER = "timer"


class WaitpointState(StrEnum):
    """The state of a waitpoint.

    A pending waitpoint is open but bound to no suspension. An active waitpoint is bound to the open suspension. A
    closed waitpoint accepts no signals.
    """

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
    """The stored parts of a token.

    Together with the key, they give the same token again; without it, they are useless.
    """

    kid: str
    nonce: bytes = field(repr=False)
    hash: bytes = field(repr=False)
    approver: str | None = None
    ends_at: datetime | None = None


@record(frozen=True, slots=True, kw_only=True)
class Waitpoint:
    """A place where signals arrive. `suspension` is the number of the last suspension that bound the waitpoint.

    `payload_schema` is the schema of the payloads that the waiting code can read, if it is known. `prompt` is
    shown to the approver, as JSON text.
    """

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
    payload_schema: str | None = None
    prompt: str | None = None

    @property
    def approver(self) -> str | None:
        return self.token.approver if self.token else None

    def close(self, reason: str, now: datetime) -> Waitpoint:
        """Return a closed copy of the waitpoint, which accepts no further signals."""
        return replace(self, state=WaitpointState.CLOSED, closed_at=now, close_reason=reason)


@record(frozen=True, slots=True, kw_only=True)
class Suspension:
    """A pause of an execution until a condition holds. `number` counts the suspensions of the execution from 1."""

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
    rest: UnusedWaitpoints
    opened_at: datetime
    timeout_at: datetime | None
    on_timeout: OnTimeout
    resume_delay: timedelta
    closed_at: datetime | None = None
    closed_by: Trigger | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSignal:
    """An accepted signal; `seq` is its order of acceptance within the execution."""

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
    correlation: str | None = None
    payload: bytes = b""
    encoding: str = "json"
    key: str | None = None
    created_at: datetime | None
    accepted_at: datetime
    effect: Effect
    suspension: int | None = None
    counts: bool = False

    @property
    def facts(self) -> SignalFacts:
        """The parts of the signal that conditions use."""
        return SignalFacts(self.id, self.waitpoint, self.name, self.source, self.seq)


@record(frozen=True, slots=True)
class SignalBinding:
    """A write that binds all signals of some addressed waitpoints to a suspension, and marks the ones that count."""

    execution_id: UUID
    number: int
    waitpoint_ids: tuple[UUID, ...]
    counting: tuple[int, ...]


@record(frozen=True, slots=True)
class SignalObservation:
    """A write that binds signals of standing waitpoints to a suspension that counts them.

    `released` are signals that an earlier suspension observed, and that do not count in this one. They become unbound.
    """

    execution_id: UUID
    number: int
    counting: tuple[int, ...]
    released: tuple[int, ...] = ()


@record(frozen=True, slots=True)
class SignalUnbinding:
    """A write that unbinds the signals of some waitpoints from a suspension, so that they may count in a later wait.

    Only counting signals of standing waitpoints are bound. An index finds these.
    """

    execution_id: UUID
    number: int
    waitpoint_ids: tuple[UUID, ...]
    only_counting: bool


@record(frozen=True, slots=True, kw_only=True)
class WaitChanges:
    """Changes of suspensions, waitpoints and signals that a decision writes."""

    opened: tuple[Suspension, ...] = ()
    changed: tuple[Suspension, ...] = ()
    added: tuple[Waitpoint, ...] = ()
    moved: tuple[Waitpoint, ...] = ()
    received: tuple[StoredSignal, ...] = ()
    bound: tuple[SignalBinding, ...] = ()
    observed: tuple[SignalObservation, ...] = ()
    unbound: tuple[SignalUnbinding, ...] = ()


# What an execution does after a timeout, in words for people.
AFTER_TIMEOUT: Mapping[OnTimeout, str] = {
    OnTimeout.FAIL: "fails",
    OnTimeout.CANCEL: "is cancelled",
    OnTimeout.EXPIRE: "expires",
    OnTimeout.AUTO_RESUME: "continues",
    OnTimeout.ESCALATE: "waits for an operator",
}
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


def make_standing_waitpoints(
    execution_id: UUID, generation: int, declared: Sequence[str] | Mapping[str, str | None], now: datetime
) -> WaitChanges:
    """Return the standing waitpoints of one generation. Their ids are the same if the submission is repeated."""
    schemas = declared if isinstance(declared, Mapping) else dict.fromkeys(declared)
    waitpoints = (
        Waitpoint(
            id=uuid5(execution_id, f"{generation}:{key}"),
            execution_id=execution_id,
            key=key,
            kind=WaitpointKind.STANDING,
            state=WaitpointState.PENDING,
            created_at=now,
            generation=generation,
            payload_schema=schema,
        )
        for key, schema in schemas.items()
    )
    return WaitChanges(added=tuple(waitpoints))
