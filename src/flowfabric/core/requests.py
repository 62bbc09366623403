"""What callers ask for. Each record checks and normalises itself when it is made, so nothing bad gets further."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any
from uuid import UUID

from flowfabric.core import limits
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.fences import digest
from flowfabric.core.frozen import put, record, unchecked
from flowfabric.core.ids import parse_id, parse_new_id
from flowfabric.core.policy import DEFAULT_POLICY, Policy
from flowfabric.core.records import Fence, WorkerId
from flowfabric.core.retry import FailureClass


class StepStatus(StrEnum):
    """An open step may still change; the others are final."""

    OPEN = "open"
    OK = "ok"
    FAILED = "failed"
    ABANDONED = "abandoned"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One execution to be stored. Give an `id` or a `key` to make repeating it after a lost reply harmless. `signals`
    names standing waitpoints: signals of these names are taken for the whole life of the execution."""

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
    delay: limits.Duration | None = None
    deadline: datetime | None = None
    signals: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.policy, Policy):
            raise InvalidRequest("invalid_policy", f"policy must be a Policy, not {type(self.policy).__name__}")
        if self.ready_at is not None and self.delay is not None:
            raise InvalidRequest("invalid_request", "give ready_at or delay, not both")
        limits.name(self.kind, "kind")
        limits.name(self.lane, "lane")
        limits.name(self.encoding, "encoding")
        limits.payload(self.payload, "payload")
        put(self, priority=limits.priority(self.priority), tags=limits.tags(self.tags))
        if self.requires != ():
            put(self, requires=limits.capabilities(self.requires, "requires"))
        if self.id is not None:
            put(self, id=parse_new_id(self.id))
        if self.key is not None:
            limits.name(self.key, "key")
        if self.signals != ():
            put(self, signals=limits.names(self.signals, "signals", most=limits.STANDING))
        self._check_times()

    def _check_times(self) -> None:
        if self.ready_at is not None:
            put(self, ready_at=limits.moment(self.ready_at, "ready_at"))
        if self.delay is not None:
            put(self, delay=limits.duration(self.delay, "delay"))
        if self.deadline is not None:
            put(self, deadline=limits.moment(self.deadline, "deadline"))

    def with_input(self, payload: bytes, encoding: str) -> Submission:
        """The same for other input; what was checked before is not checked again."""
        limits.payload(payload, "payload")
        limits.name(encoding, "encoding")
        return unchecked(self, payload=payload, encoding=encoding)

    def fingerprint(self, namespace: str) -> bytes:
        """What a repeated submit is compared by: everything but the id, the times and the priority."""
        names = (namespace, self.kind, self.encoding, self.lane, *self.signals)
        labels = (*names, tuple(self.requires), self.policy)
        hashed: hashlib._Hash = _hash_of_labels(labels, tuple(self.tags.items())).copy()
        hashed.update(self.payload)
        return hashed.digest()


@record(frozen=True, slots=True)
class Step:
    """A step result to be checkpointed under a name that is unique within the execution."""

    name: str
    payload: bytes = b""
    encoding: str = "json"
    status: StepStatus = StepStatus.OK

    def __post_init__(self) -> None:
        limits.name(self.name, "step name")
        limits.payload(self.payload, "step result")
        limits.name(self.encoding, "encoding")
        if type(self.status) is not StepStatus:
            put(self, status=choice(StepStatus, self.status, "status"))

    def digest(self) -> str:
        """What tells a repeated checkpoint from a contradicting one."""
        return digest("step", self.status.value, self.encoding, self.payload)


@record(frozen=True, slots=True, kw_only=True)
class Claim:
    """A worker's wish for work: along which lanes, with which capabilities, how much and for how long."""

    lanes: tuple[str, ...]
    worker: WorkerId
    capabilities: tuple[str, ...]
    limit: int
    lease_ttl: timedelta | None
    kinds: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTerms:
    """The lease to be given out: to whom, under which fresh id, for how long (none: as the policy says)."""

    worker: WorkerId
    lease_id: UUID
    ttl: timedelta | None


@record(frozen=True, slots=True, kw_only=True)
class Completion:
    """A worker's word that the attempt succeeded."""

    fence: Fence
    result: bytes
    encoding: str
    steps: tuple[Step, ...] = ()

    def digest(self) -> str:
        return digest("complete", self.result, self.encoding, *step_parts(self.steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureReport:
    """A worker's word that the attempt failed; `chance` is the draw for the jitter of a retry."""

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
class Pause:
    """A worker's wish to go on with the same attempt later: at a time, after a delay, or as soon as anybody can."""

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
    """A worker's report of how far it is; absent parts keep what was reported before."""

    fence: Fence
    percent: int | None
    message: str | None


@record(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Step results to be recorded under a fence."""

    fence: Fence
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCancel:
    """A worker's wish to end the execution that it works on."""

    fence: Fence
    reason: str
    steps: tuple[Step, ...] = ()

    def digest(self) -> str:
        return digest("cancel", self.reason, *step_parts(self.steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What an operator's action is recorded with."""

    principal: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WhichLease:
    """Which lease an operator means: whatever is live, or only that of an instance, an id or an epoch."""

    instance: str | None = None
    lease_id: UUID | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantTerms:
    """The grant to be given out: to whom, under which fresh id, for how long; and by whom, and why."""

    command: Command
    grant_id: UUID
    worker: WorkerId
    capabilities: tuple[str, ...]
    ttl: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayFrom:
    """From which recorded step to run again (none: from the start), and which generation the caller saw."""

    step: str | None = None
    generation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """Which held executions an operator means: all, or only of a kind or held for a reason."""

    kind: str | None
    reason: str | None


def fence(value: object) -> Fence:
    """A fence whose parts have the right types; raises `invalid_fence` otherwise."""
    if not isinstance(value, Fence):
        raise InvalidRequest("invalid_fence", f"a fence must be the Fence of a lease, not {type(value).__name__}")
    if (
        type(value.execution_id) is type(value.lease_id) is UUID
        and type(value.epoch) is int
        and 0 <= value.epoch < 2**63
    ):
        return value
    epoch = limits.whole(value.epoch, "fence.epoch", 0, limits.LARGEST)
    return Fence(parse_id(value.execution_id, "fence.execution_id"), epoch, parse_id(value.lease_id, "fence.lease_id"))


def steps(value: object) -> tuple[Step, ...]:
    """Distinctly named steps, at most a batch of them."""
    if value == ():
        return ()
    if type(value) is tuple and len(value) == 1 and isinstance(value[0], Step):
        return value
    items = tuple(limits.batch(value, "steps"))
    for item in items:
        if not isinstance(item, Step):
            raise InvalidRequest(
                "invalid_type", f"steps must hold Step records, not {type(item).__name__}", field="steps"
            )
    if len({item.name for item in items}) != len(items):
        raise InvalidRequest("invalid_request", "two steps of one call have the same name", field="steps")
    return items


def worker(value: object) -> WorkerId:
    """A worker by record, or by one text that serves as name and instance."""
    if isinstance(value, WorkerId):
        return WorkerId(limits.name(value.name, "worker.name"), limits.name(value.instance, "worker.instance"))
    text = limits.name(value, "worker")
    return WorkerId(text, text)


def choice(kind: type[StrEnum], value: Any, what: str) -> Any:
    """The member of an enumeration behind a member or its word."""
    try:
        return kind(value)
    except ValueError:
        message = f"{what} must be one of {', '.join(kind)}, not {limits.shown(value)}"
        raise InvalidRequest("invalid_choice", message, field=what) from None


@lru_cache(maxsize=1024)
def _hash_of_labels(labels: tuple[Any, ...], tags: tuple[tuple[str, str], ...]) -> Any:
    """The hash of everything but the payload, begun once for submissions that differ in nothing else."""
    *names, requires, policy = labels
    body = [*names, list(requires), policy.to_text(), dict(tags)]
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode())


def step_parts(steps: tuple[Step, ...]) -> list[str]:
    """What the steps that ride along add to the digest of a request; nothing if there are none."""
    return [part for step in steps for part in (step.name, step.digest())]
