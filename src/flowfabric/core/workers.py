"""The register of workers: who is there, what they offer, and when they count as gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from flowfabric.core.errors import Conflict, NotFound
from flowfabric.core.records import WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker instance as it has registered itself; `busy` of its `slots` are in use by its last word. `kinds` are
    those that it knows, None if it takes all."""

    namespace: str
    id: WorkerId
    lanes: tuple[str, ...]
    capabilities: tuple[str, ...]
    version: str
    host: str
    slots: int
    busy: int
    ttl: timedelta
    registered_at: datetime
    seen_at: datetime
    expires_at: datetime
    kinds: tuple[str, ...] | None = None

    def is_live(self, now: datetime) -> bool:
        """True while it has been heard of within its time."""
        return self.expires_at > now

    def knows(self, kind: str) -> bool:
        """True if it takes executions of this kind."""
        return self.kinds is None or kind in self.kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a worker says about itself."""

    id: WorkerId
    lanes: tuple[str, ...]
    capabilities: tuple[str, ...]
    version: str
    host: str
    slots: int
    ttl: timedelta
    kinds: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Registered:
    """The worker is in the register until then; `refreshed` if it was there before."""

    expires_at: datetime
    refreshed: bool


@dataclass(frozen=True, slots=True)
class MarkedDead:
    """The worker was taken out of the register. Its leases run out by themselves, or are revoked one by one."""

    instance: str


def decide_registration(known: Worker | None, asked: Registration, namespace: str, now: datetime) -> Worker:
    """The worker as it is registered now; refused while the instance lives under another name."""
    refreshed = known if known is not None and known.is_live(now) else None
    if refreshed is not None and refreshed.id.name != asked.id.name:
        message = (
            f"instance {asked.id.instance!r} is registered by worker {refreshed.id.name!r}; "
            "draw another instance, or wait until that one is gone"
        )
        raise Conflict("instance_reassigned", message, instance=asked.id.instance, worker=refreshed.id.name)
    return Worker(
        namespace=namespace, id=asked.id, lanes=asked.lanes, capabilities=asked.capabilities, version=asked.version,
        host=asked.host, slots=asked.slots, busy=refreshed.busy if refreshed else 0, ttl=asked.ttl,
        registered_at=refreshed.registered_at if refreshed else now, seen_at=now, expires_at=now + asked.ttl,
        kinds=asked.kinds,
    )  # fmt: skip


def worker_not_found(instance: str) -> NotFound:
    """For an instance that is not in the register, or was not heard of for longer than it had said."""
    message = f"instance {instance!r} is not registered, or was silent too long; register it again"
    return NotFound("worker_not_found", message, instance=instance)


def nobody_offers(requires: Sequence[str], workers: Sequence[Worker]) -> tuple[str, ...]:
    """The required capabilities that not one of these workers offers."""
    return tuple(token for token in requires if not any(token in worker.capabilities for worker in workers))
