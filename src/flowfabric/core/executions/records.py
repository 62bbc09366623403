"""Records of executions, as the engine reads and writes them.

All records are frozen: a decision creates changed copies.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any
from uuid import UUID

from flowfabric.core.executions.states import (
    AttemptState,
    BlockingReason,
    Ownership,
    State,
    StateVector,
    derive_vector,
)
from flowfabric.core.fast_dataclass import record
from flowfabric.core.policy import Policy

_MIN_ROUTE_ID = 1 << 62


class AttemptOrigin(StrEnum):
    """Why an attempt was opened."""

    FRESH = "fresh"
    RETRY = "retry"
    RECLAIMED = "reclaimed"
    REPLAYED = "replayed"


class AttemptOutcome(StrEnum):
    """How an attempt ended."""

    SUCCESS = "ended_success"
    FAILURE = "ended_failure"
    CANCELLED = "ended_cancelled"
    RECLAIMED = "interrupted_reclaimed"


@record(frozen=True, slots=True)
class Fence:
    """Proof of ownership that a worker presents with every write.

    Workers can also use the fence to protect their writes to other systems. `namespace` says where an engine that
    claims from several namespaces finds the execution. The lease id alone identifies the lease.
    """

    execution_id: UUID
    epoch: int
    lease_id: UUID
    namespace: str | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class WorkerId:
    """A worker's logical name, and the instance (process) that runs under it."""

    name: str
    instance: str


@record(frozen=True, slots=True, kw_only=True)
class HeldLease:
    """The live lease in an execution row."""

    id: UUID
    worker: WorkerId
    ttl: timedelta
    acquired_at: datetime
    expires_at: datetime
    check_at: datetime
    resumed: bool


@record(frozen=True, slots=True, kw_only=True)
class FormerLease:
    """The last lease that ended, and why.

    `digest` and `until` serve to recognize a repeat of the request that ended it.
    """

    id: UUID
    epoch: int
    worker: WorkerId
    end: str
    digest: str | None
    until: datetime | None


@dataclass(frozen=True, slots=True)
class Resumption:
    """The suspension that was closed last, and what closed it.

    The execution keeps this record until its next lease ends.
    """

    suspension_id: UUID
    trigger: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequest:
    """A request to cancel an execution, whose worker has until `due_at` to clean up.

    With `children`, the cancel also ends the descendants that the execution has at `due_at`.
    """

    due_at: datetime
    principal: str
    source: str
    reason: str
    children: bool = False


@dataclass(frozen=True, kw_only=True)
class Execution:
    """An execution as it is stored.

    `attempt_index` is the index of the running or pending attempt, or of the last attempt after the execution has
    ended. `attempt_started_at` is set at the first claim of that attempt. The class has no slots, because `copy_with`
    cannot copy a record with slots.
    """

    id: UUID
    namespace: str
    lane: str
    kind: str
    route_id: int
    priority: int
    payload: bytes
    encoding: str
    tags: Mapping[str, str]
    policy: Policy
    idempotency_key: str | None
    fingerprint: bytes

    state: State
    blocking_reason: BlockingReason
    attempt_state: AttemptState
    ownership: Ownership | None
    epoch: int
    version: int
    generation: int
    is_standalone: bool

    created_at: datetime
    changed_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    ready_at: datetime | None
    deadline_at: datetime | None
    attempt_timeout_at: datetime | None
    attempt_timeout_left: timedelta | None
    purge_at: datetime | None

    lease: HeldLease | None
    former: FormerLease | None

    attempt_index: int
    attempt_origin: AttemptOrigin
    attempt_started_at: datetime | None
    retry_count: int
    reclaim_count: int
    replay_count: int
    signal_seq: int
    suspension_count: int
    resumption: Resumption | None

    progress_percent: int | None
    progress_message: str | None
    failure_message: str | None
    failure_category: str | None
    cancelled_by: str | None
    cancel_reason: str | None
    hold_reason: str | None

    flow_id: UUID | None
    member_name: str | None
    parent_id: UUID | None
    has_children: bool
    cancel_request: CancelRequest | None
    creator: str | None = None

    @property
    def flow(self) -> UUID | None:
        """The flow whose lock covers the execution: the flow that it is a member of, or the flow of its children."""
        return self.flow_id or (self.id if self.has_children else None)

    @property
    def fence(self) -> Fence | None:
        """The fence of the live lease, if there is one."""
        return Fence(self.id, self.epoch, self.lease.id, self.namespace) if self.lease else None

    @property
    def vector(self) -> StateVector:
        """The public fields of the execution's state."""
        return derive_vector(self.state, self.blocking_reason, self.attempt_state, self.ownership)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt that has ended, with its result or failure."""

    execution_id: UUID
    attempt_index: int
    generation: int
    origin: AttemptOrigin
    worker: WorkerId | None
    started_at: datetime
    ended_at: datetime
    outcome: AttemptOutcome
    result: bytes | None = None
    encoding: str | None = None
    failure_class: str | None = None
    failure_category: str | None = None
    failure_message: str | None = None
    failure_detail: bytes | None = None

    @property
    def traceback(self) -> str:
        """The traceback of the failure, if the worker has reported one."""
        return read_traceback(self.failure_detail)


def read_traceback(detail: bytes | None) -> str:
    """Return the text under the name `traceback` in the detail of a failure, or an empty text if there is none.

    Every program decides what its details contain, so they may have any form.
    """
    try:
        document = json.loads(detail or b"null")
    except (ValueError, RecursionError):
        return ""
    text = document.get("traceback") if isinstance(document, dict) else None
    if not isinstance(text, str):
        return ""
    return text.encode(errors="backslashreplace").decode().replace("\x00", "\\x00")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event: a row in the history of an execution, which subscribers also receive.

    `version` numbers the events of an execution without gaps. In events from a subscription, `cursor` is set; a
    subscription that starts with this cursor continues after the event.
    """

    namespace: str
    family: str
    name: str
    at: datetime
    lane: str
    execution_id: UUID | None = None
    version: int | None = None
    kind: str | None = None
    state: State | None = None
    epoch: int | None = None
    generation: int | None = None
    attempt_index: int | None = None
    lease_id: UUID | None = None
    worker: WorkerId | None = None
    ends_lease: bool = False
    tags: Mapping[str, str] | None = None
    principal: str | None = None
    reason: str | None = None
    details: Mapping[str, Any] | None = None
    flow_id: UUID | None = None
    cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """A checkpointed step: its place in the journal, its name and its result."""

    seq: int
    name: str
    status: str
    payload: bytes
    encoding: str
    attempt_index: int
    generation: int
    recorded_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The right of one worker to take over an execution that is kept for a hand-off."""

    id: UUID
    execution_id: UUID
    worker: WorkerId
    granted_at: datetime
    expires_at: datetime
    consumed_by: UUID | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """The namespace, lane, kind and required capabilities that a worker must match to claim an execution."""

    namespace: str
    lane: str
    kind: str
    requires: tuple[str, ...]

    @property
    def digest(self) -> str:
        """A digest that identifies the route."""
        return route_digest(self.namespace, self.lane, self.kind, self.requires)

    @property
    def id(self) -> int:
        """The id that the route gets when it is created: 62 bits of the digest, from 2^62 to 2^63 - 1.

        Older stores also have routes with small ids, which were counted. No new id can be equal to one of them.
        """
        return _MIN_ROUTE_ID + int(self.digest, 16) % _MIN_ROUTE_ID


@lru_cache(maxsize=10_000)
def route_digest(namespace: str, lane: str, kind: str, requires: tuple[str, ...]) -> str:
    """Return the digest of a route. Submit calls this for every execution, so results are remembered."""
    return hashlib.sha256(json.dumps([namespace, lane, kind, list(requires)]).encode()).hexdigest()
