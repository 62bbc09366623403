"""The registry of workers: their lanes, kinds and capabilities, and when they count as dead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Literal

from flowfabric.core.errors import Conflict, NotFound, Refused
from flowfabric.core.executions.records import WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The registration that a worker sends. `kinds` are the kinds of executions that it runs; None means all kinds."""

    id: WorkerId
    lanes: tuple[str, ...]
    capabilities: tuple[str, ...]
    version: str
    host: str
    slots: int
    ttl: timedelta
    kinds: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo(Registration):
    """A registered worker instance. `busy` of its `slots` were in use at its last heartbeat."""

    namespace: str
    busy: int
    registered_at: datetime
    seen_at: datetime
    expires_at: datetime

    def is_live(self, now: datetime) -> bool:
        """Return True if the worker has sent a heartbeat within its TTL."""
        return self.expires_at > now

    def is_silent(self, now: datetime) -> bool:
        """Return True if the worker has sent no heartbeat for half of its TTL. Its process was probably killed."""
        return self.seen_at + self.ttl / 2 <= now

    def knows(self, kind: str) -> bool:
        """Return True if the worker runs executions of this kind."""
        return self.kinds is None or kind in self.kinds


@dataclass(frozen=True, slots=True)
class WorkerPage:
    """One page of live workers, sorted by instance, and the cursor of the next page if there is one."""

    items: tuple[WorkerInfo, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Registered:
    """The instance is registered until `expires_at`. `refreshed` is True if it was already registered."""

    expires_at: datetime
    refreshed: bool


@dataclass(frozen=True, slots=True)
class MarkedDead:
    """The worker was removed from the registry. Its leases expire as usual, or can be revoked one by one."""

    instance: str


def decide_registration(
    existing: WorkerInfo | None, request: Registration, namespace: str, now: datetime
) -> WorkerInfo:
    """Return the record of the registered worker; raise if a live worker with another name uses the same instance."""
    refreshed = existing if existing is not None and existing.is_live(now) else None
    if refreshed is not None and refreshed.id.name != request.id.name:
        message = (
            f"instance {request.id.instance!r} is registered by worker {refreshed.id.name!r}; "
            "use another instance name, or wait until that one expires"
        )
        raise Conflict("instance_reassigned", message, instance=request.id.instance, worker=refreshed.id.name)
    return WorkerInfo(
        **{item.name: getattr(request, item.name) for item in fields(request)},
        namespace=namespace,
        busy=refreshed.busy if refreshed else 0,
        registered_at=refreshed.registered_at if refreshed else now,
        seen_at=now,
        expires_at=now + request.ttl,
    )


def worker_not_found(instance: str) -> NotFound:
    """Return the error for an instance that is not registered or has missed its heartbeats."""
    message = f"instance {instance!r} is not registered or has expired; register it again"
    return NotFound("worker_not_found", message, instance=instance)


@dataclass(frozen=True, slots=True)
class MissingWorker:
    """Why no live worker can claim some work: no worker serves its lane, runs its kind or offers its capabilities."""

    cause: Literal["lane", "kind", "capabilities"]
    sentence: str


def find_missing_worker(
    lane: str, kind: str, requires: Sequence[str], workers: Iterable[WorkerInfo]
) -> MissingWorker | None:
    """Return why none of the live workers can claim such work, or None if one can."""
    on_lane = [worker for worker in workers if lane in worker.lanes]
    if not on_lane:
        return MissingWorker("lane", f'no live worker serves lane "{lane}"')
    knowing = [worker for worker in on_lane if worker.knows(kind)]
    if not knowing:
        return MissingWorker("kind", f'no live worker on lane "{lane}" runs "{kind}"')
    if any(not missing_capabilities(requires, worker.capabilities) for worker in knowing):
        return None
    lacking = ", ".join(unoffered_capabilities(requires, knowing) or requires)
    return MissingWorker("capabilities", f'no live worker on lane "{lane}" offers {lacking}')


def unoffered_capabilities(requires: Sequence[str], workers: Sequence[WorkerInfo]) -> tuple[str, ...]:
    """Return the required capabilities that none of the workers offers."""
    return tuple(token for token in requires if not any(token in worker.capabilities for worker in workers))


def missing_capabilities(required: Iterable[str], offered: Iterable[str]) -> tuple[str, ...]:
    """Return the required capabilities that the worker does not offer, sorted."""
    return tuple(sorted(set(required) - set(offered)))


def require_capabilities(required: Iterable[str], offered: Iterable[str]) -> None:
    """Raise `capability_mismatch` unless the worker offers every required capability."""
    missing = missing_capabilities(required, offered)
    if missing:
        message = f"the execution requires {', '.join(missing)}; use a worker that offers it"
        raise Refused("capability_mismatch", message, missing=missing)
