"""Records that the store takes and returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from flowfabric.core.executions.outcomes import Lease
from flowfabric.core.executions.records import Execution
from flowfabric.core.executions.requests import Submission
from flowfabric.core.executions.states import BlockingReason, State
from flowfabric.core.fast_dataclass import record
from flowfabric.core.tokens.key_ring import KeyRing
from flowfabric.core.waits.evaluate import SignalFacts
from flowfabric.core.waits.records import Suspension, Waitpoint

_FIRST_ID = UUID(int=0)


@record(frozen=True, slots=True)
class NewExecution:
    """A submission that is ready to be inserted."""

    id: UUID
    namespace: str
    submission: Submission
    state: State
    blocking_reason: BlockingReason
    ready_at: datetime | None
    flow_id: UUID | None = None
    member_name: str | None = None
    parent_id: UUID | None = None
    fingerprint: bytes | None = None
    deadline_at: datetime | None = None


@record(frozen=True, slots=True)
class Claimed:
    """The leases that a claim got, best first.

    `is_incomplete` is true if other transactions had locked all candidates, or changed some of them during the claim.
    `is_current` is false if the store went back to an earlier state, so that the era of the leases is too low.
    """

    leases: tuple[Lease, ...]
    is_incomplete: bool
    is_current: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A query for one page of executions with ids from `first` to below `before`, newest first.

    `key` selects the execution that holds this idempotency key, and `flow` the members of a flow.
    """

    namespace: str
    states: tuple[State, ...]
    before: UUID
    limit: int
    lane: str | None = None
    kind: str | None = None
    tags: Mapping[str, str] | None = None
    created_from: datetime | None = None
    created_until: datetime | None = None
    key: str | None = None
    flow: UUID | None = None
    first: UUID = _FIRST_ID


@record(frozen=True, slots=True, kw_only=True)
class Closing:
    """Ended executions whose suspensions and waitpoints must be closed.

    The executions in `were_active` were running, so they have no open suspension.
    """

    were_active: Sequence[UUID] = ()
    others: Sequence[UUID] = ()


NO_CLOSING = Closing()


@record(frozen=True, slots=True)
class Release:
    """A blocked member that may start, immediately or at `ready_at`."""

    id: UUID
    state: State
    blocking_reason: BlockingReason
    ready_at: datetime | None


@record(frozen=True, slots=True, kw_only=True)
class MemberTermination:
    """A member to skip or cancel, and why."""

    id: UUID
    state: State
    cancelled_by: str | None
    principal: str | None
    reason: str
    details: Mapping[str, object]
    failure_message: str | None = None
    failure_category: str | None = None


@dataclass(frozen=True, slots=True)
class BadEnd:
    """A member that ended badly. `is_taken_up` is true if an edge, its parent or a replay of its parent handled it."""

    state: State
    cancelled_by: str | None
    is_taken_up: bool


@record(frozen=True, slots=True)
class SuspensionName:
    """How to find the suspension of a repeated call: by its key in the generation, or by its id in the execution."""

    execution_id: UUID
    id: UUID
    generation: int
    key: str | None


@record(frozen=True, slots=True)
class SignalLookup:
    """How to find an earlier delivery of a signal: by its id in the execution, or by its key at the waitpoint."""

    execution_id: UUID
    id: UUID
    waitpoint_id: UUID | None
    key: str | None


@record(frozen=True, slots=True)
class SignalQueue:
    """The unused signals of a waitpoint to read: `limit` signals after the position, and those in `skipped`."""

    waitpoint_id: UUID
    key: str
    after: int
    limit: int
    skipped: tuple[int, ...] = ()


@record(frozen=True, slots=True)
class ReceivedSignals:
    """Signals by execution id: `counting` in the open suspension, and `accepted` is the id of an earlier duplicate."""

    counting: Mapping[UUID, tuple[SignalFacts, ...]]
    accepted: Mapping[UUID, UUID]


@record(frozen=True, slots=True, kw_only=True)
class OptimisticSnapshot:
    """Executions (without payloads) and everything attached to them, as they were at one moment.

    A transaction that changes anything attached to an execution also writes the row of the execution. So an unchanged
    row version proves that the whole snapshot of that execution is still valid.
    """

    now: datetime
    executions: Mapping[UUID, Execution]
    row_versions: Mapping[UUID, str]
    waitpoints: Mapping[UUID, Sequence[Waitpoint]]
    suspensions: Mapping[UUID, Suspension]
    received: ReceivedSignals
    key_ring: KeyRing | None
