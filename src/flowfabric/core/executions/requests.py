"""Requests of callers. Each record validates and normalizes itself, so bad input goes no further."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any
from uuid import UUID

from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest, NotFound, Refused
from flowfabric.core.executions.records import Execution, Fence, FormerLease, WorkerId
from flowfabric.core.executions.transitions import refusal
from flowfabric.core.fast_dataclass import copy_unchecked, put, record
from flowfabric.core.ids import parse_id, parse_new_id
from flowfabric.core.policy import DEFAULT_POLICY, FailureClass, Policy
from flowfabric.core.waits.schemas import DeclaredSignals, parse_declared

# These functions check whether a fence owns an execution, and explain a refusal.
#
# A fence owns an active execution if it names the live lease and that lease has not expired. Otherwise the refusal is:
#
# 1. The fence names the last lease that ended: `lease_expired`, `lease_revoked` or `execution_not_active`. A repeat of
#    the request that ended the lease gets the first outcome again instead.
# 2. The fence names the live lease, which has expired: `lease_expired`.
# 3. The fence is older than the last lease, or a different lease is live: `stale_lease`.
# 4. In every other case: `execution_not_active`.


_LOSS_CODES = {"lease_expired": "lease_expired", "lease_revoked": "lease_revoked"}


def owns(execution: Execution, fence: Fence, now: datetime) -> bool:
    """Return True if the fence names the live lease and the lease has not expired."""
    lease = execution.lease
    return (
        lease is not None and lease.id == fence.lease_id and execution.epoch == fence.epoch and lease.expires_at > now
    )


def require_owner(execution: Execution | None, fence: Fence, now: datetime) -> Execution:
    """Return the execution if the fence owns it; otherwise raise an error with the reason why the fence is refused."""
    if execution is None:
        raise execution_not_found(fence.execution_id)
    if not owns(execution, fence, now):
        raise explain_fence(execution, fence)
    return execution


def find_repeated(execution: Execution | None, fence: Fence, digest: str) -> FormerLease | None:
    """Return the last lease if a request with this digest ended it, so that its lost reply can be sent again."""
    former = execution.former if execution else None
    if former and _is_former(former, fence) and former.digest == digest:
        return former
    return None


def explain_fence(execution: Execution, fence: Fence) -> Refused:
    """Return the refusal that explains why the fence does not own the execution."""
    lease, former = execution.lease, execution.former
    if former and _is_former(former, fence):
        code = _LOSS_CODES.get(former.end, "execution_not_active")
        return refusal(execution, code, f"this lease ended ({former.end}); stop working on it")
    if lease and lease.id == fence.lease_id and execution.epoch == fence.epoch:
        return refusal(execution, "lease_expired", "this lease expired; stop working on it")
    if lease or (former and fence.epoch < former.epoch):
        return refusal(execution, "stale_lease", "a later lease exists; stop working on it")
    return refusal(execution, "execution_not_active", "it has no such lease; claim it first")


def execution_not_found(id_: object) -> NotFound:
    """Return the error for an execution id that does not exist in this namespace."""
    message = f"execution {id_} does not exist in this namespace; check the id and the namespace"
    return NotFound("execution_not_found", message, execution_id=id_)


def digest(operation: str, *content: bytes | str | None) -> str:
    """Return a digest of an operation and its content, by which a repeated request is recognized."""
    parts = [operation.encode()]
    for part in content:
        data = part.encode() if isinstance(part, str) else part
        parts.append(b"\x00-" if data is None else b"\x00%d:%b" % (len(data), data))
    return hashlib.sha256(b"".join(parts)).hexdigest()


def _is_former(former: FormerLease, fence: Fence) -> bool:
    return former.id == fence.lease_id and former.epoch == fence.epoch


class StepStatus(StrEnum):
    """The status of a step. Only an open step may still change; the other statuses are final."""

    OPEN = "open"
    OK = "ok"
    FAILED = "failed"
    ABANDONED = "abandoned"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """An execution to be stored.

    Set `id` or `key` so that the submit can be repeated after a lost reply. `signals` names the standing waitpoints,
    which accept signals during the whole life of the execution. A mapping also gives the schema of each signal's
    payload, or None. `creator` names the person or program that submits; it is kept with the execution.
    """

    kind: str
    payload: bytes = b""
    encoding: str = "json"
    lane: str = "default"
    priority: int = 0
    requires: Collection[str] = ()
    policy: Policy = DEFAULT_POLICY
    tags: Mapping[str, str] = field(default_factory=dict)
    id: UUID | str | None = None
    key: str | None = None
    ready_at: datetime | None = None
    delay: validation.Duration | None = None
    deadline: datetime | None = None
    signals: DeclaredSignals = ()
    creator: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.policy, Policy):
            raise InvalidRequest("invalid_policy", f"policy must be a Policy, not {type(self.policy).__name__}")
        if self.ready_at is not None and self.delay is not None:
            raise InvalidRequest("invalid_request", "ready_at and delay exclude each other; pass one of them")
        validation.name(self.kind, "kind")
        validation.name(self.lane, "lane")
        validation.name(self.encoding, "encoding")
        validation.payload(self.payload, "payload")
        put(self, priority=validation.priority(self.priority), tags=validation.tags(self.tags))
        if self.requires != ():
            put(self, requires=validation.capabilities(self.requires, "requires"))
        if self.id is not None:
            put(self, id=parse_new_id(self.id))
        if self.key is not None:
            validation.name(self.key, "key")
        if self.signals != ():
            put(self, signals=parse_declared(self.signals))
        if self.creator is not None:
            validation.name(self.creator, "creator")
        self._check_times()

    def _check_times(self) -> None:
        if self.ready_at is not None:
            put(self, ready_at=validation.timestamp(self.ready_at, "ready_at"))
        if self.delay is not None:
            put(self, delay=validation.duration(self.delay, "delay"))
        if self.deadline is not None:
            put(self, deadline=validation.timestamp(self.deadline, "deadline"))

    @property
    def has_times(self) -> bool:
        """True if the execution has a start time or a deadline."""
        own = self.delay is not None or self.ready_at is not None or self.deadline is not None
        return own or self.policy.deadline is not None

    def with_input(self, payload: bytes, encoding: str) -> Submission:
        """Return a copy with new input; only the input is validated again."""
        validation.payload(payload, "payload")
        validation.name(encoding, "encoding")
        return copy_unchecked(self, payload=payload, encoding=encoding)

    def fingerprint(self, namespace: str) -> bytes:
        """Return a hash of all but the id, the times, the priority and the creator, to compare repeated submits."""
        names = (namespace, self.kind, self.encoding, self.lane, *self.signals)
        labels = (*names, tuple(self.requires), self.policy)
        hashed: hashlib._Hash = _hash_of_labels(labels, tuple(self.tags.items())).copy()
        hashed.update(self.payload)
        return hashed.digest()


@record(frozen=True, slots=True)
class Step:
    """A step result to be checkpointed, with a name that is unique within the execution."""

    name: str
    payload: bytes = b""
    encoding: str = "json"
    status: StepStatus = StepStatus.OK

    def __post_init__(self) -> None:
        validation.name(self.name, "step name")
        validation.payload(self.payload, "step result")
        if self.encoding != "json":
            validation.name(self.encoding, "encoding")
        if type(self.status) is not StepStatus:
            put(self, status=validation.parse_choice(StepStatus, self.status, "status"))

    def digest(self) -> str:
        """Return a digest of the step.

        A repeated checkpoint has the same digest, a contradicting checkpoint has a different one.
        """
        # The same digest as that of the function `digest`, which takes three times as long.
        status, encoding, payload = self.status.value.encode(), self.encoding.encode(), self.payload
        parts = (len(status), status, len(encoding), encoding, len(payload), payload)
        return hashlib.sha256(b"step\x00%d:%b\x00%d:%b\x00%d:%b" % parts).hexdigest()


@record(frozen=True, slots=True, kw_only=True)
class Claim:
    """A worker's request for work: its lanes, kinds and capabilities, how many leases, and for how long.

    With `namespaces`, the claim covers these, which take turns in this order, instead of the engine's own namespace.
    """

    lanes: tuple[str, ...]
    worker: WorkerId
    capabilities: tuple[str, ...]
    limit: int
    lease_ttl: timedelta | None
    kinds: tuple[str, ...] | None
    namespaces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTerms:
    """The terms of a new lease: its worker, its id and its TTL.

    Without a `ttl`, the policy of the execution sets it.
    """

    worker: WorkerId
    lease_id: UUID
    ttl: timedelta | None


@record(frozen=True, slots=True, kw_only=True)
class Completion:
    """A worker's report that the attempt succeeded."""

    fence: Fence
    result: bytes
    encoding: str
    steps: tuple[Step, ...] = ()

    def digest(self) -> str:
        return digest("complete", self.result, self.encoding, *step_parts(self.steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureReport:
    """A worker's report that the attempt failed; `chance` is the random number for the jitter of a retry."""

    fence: Fence
    message: str
    failure_class: FailureClass
    category: str
    detail: bytes | None
    chance: float
    steps: tuple[Step, ...] = ()

    def digest(self) -> str:
        content = (self.message, self.failure_class.value, self.category, self.detail)
        return digest("fail", *content, *step_parts(self.steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayRequest:
    """A worker's request to continue the same attempt later: at a time, after a delay, or as soon as possible."""

    fence: Fence
    until: datetime | None = None
    after: timedelta | None = None
    steps: tuple[Step, ...] = ()

    def digest(self) -> str:
        after = None if self.after is None else str(self.after.total_seconds())
        until = self.until.isoformat() if self.until else None
        return digest("delay", until, after, *step_parts(self.steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A worker's progress report. A field with the value None keeps its last reported value."""

    fence: Fence
    percent: int | None
    message: str | None


@record(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Step results to be recorded under a fence."""

    fence: Fence
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelOwnRequest:
    """A worker's request to cancel its own execution."""

    fence: Fence
    reason: str
    steps: tuple[Step, ...] = ()

    def digest(self) -> str:
        return digest("cancel", self.reason, *step_parts(self.steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditInfo:
    """Who performs an operator's action, and why."""

    principal: str
    reason: str

    @property
    def facts(self) -> dict[str, Any]:
        """The fields of an event that name the operator and the reason."""
        return {"principal": self.principal, "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseFilter:
    """Which live lease an operator selects; None matches any instance, lease id or epoch."""

    instance: str | None = None
    lease_id: UUID | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantTerms:
    """The terms of a new grant: its worker, id and TTL, and the operator who gives it with a reason."""

    command: AuditInfo
    grant_id: UUID
    worker: WorkerId
    capabilities: tuple[str, ...]
    ttl: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayFrom:
    """Where a replay begins: `step` is a recorded step, or None for the start.

    `generation` is the one that the caller saw.
    """

    step: str | None = None
    generation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldFilter:
    """The held executions that an operator selects: all of them, or only those with a kind or a hold reason."""

    kind: str | None
    reason: str | None


def parse_fence(value: object) -> Fence:
    """Return a fence whose parts have the right types; raise `invalid_fence` otherwise."""
    if not isinstance(value, Fence):
        raise InvalidRequest("invalid_fence", f"fence must be the Fence of a lease, not {type(value).__name__}")
    has_ids = type(value.execution_id) is type(value.lease_id) is UUID
    if has_ids and type(value.epoch) is int and 0 <= value.epoch < 2**63:
        return value
    epoch = validation.integer(value.epoch, "fence.epoch", 0, validation.MAX_INTEGER)
    id_, lease_id = parse_id(value.execution_id, "fence.execution_id"), parse_id(value.lease_id, "fence.lease_id")
    return Fence(id_, epoch, lease_id, value.namespace)


def parse_steps(value: object) -> tuple[Step, ...]:
    """Return the steps; raise if two have the same name or there are more than fit in one batch."""
    if value == ():
        return ()
    if type(value) is tuple and len(value) == 1 and isinstance(value[0], Step):
        return value
    steps = tuple(validation.batch(value, "steps"))
    for item in steps:
        if not isinstance(item, Step):
            raise validation.wrong_type("a step", "a Step", item, field="steps")
    if len({item.name for item in steps}) != len(steps):
        raise InvalidRequest("invalid_request", "two steps of one call have the same name; rename one", field="steps")
    return steps


def parse_worker(value: object) -> WorkerId:
    """Return a worker id. If a string is given, use it as the name and as the instance."""
    if isinstance(value, WorkerId):
        return WorkerId(validation.name(value.name, "worker.name"), validation.name(value.instance, "worker.instance"))
    text = validation.name(value, "worker")
    return WorkerId(text, text)


@lru_cache(maxsize=1024)
def _hash_of_labels(labels: tuple[Any, ...], tags: tuple[tuple[str, str], ...]) -> Any:
    """Return the hash of a submission without its payload.

    It is cached, since many submissions differ only in the payload.
    """
    *names, requires, policy = labels
    body = [*names, list(requires), policy.to_text(), dict(tags)]
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode())


def step_parts(steps: tuple[Step, ...]) -> list[str]:
    """Return the parts of a request's digest that come from its steps."""
    return [part for step in steps for part in (step.name, step.digest())]
