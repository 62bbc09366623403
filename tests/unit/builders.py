"""Records for tests of the pure core: an execution in every situation, its leases, and what must hold of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from flowfabric.core.records import AttemptOrigin, Execution, FormerLease, HeldLease
from flowfabric.core.states import TERMINAL, AttemptState, BlockingReason, Ownership, State
from flowfabric.engine import Fence, Policy, WorkerId

T0 = datetime(2030, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
TTL = timedelta(seconds=30)
WORKER = WorkerId("packer", "packer-7")
OTHER_WORKER = WorkerId("sorter", "sorter-1")
ID = UUID("01890000-0000-7000-8000-000000000001")
LEASE_ID = UUID(int=0xA)
FORMER_ID = UUID(int=0xF)
EPOCH = 5


def fresh(**changes: Any) -> Execution:
    """An execution as it is after its submit: waiting, never attempted."""
    base = Execution(
        id=ID, namespace="default", lane="default", kind="job", route_id=1, priority=0, payload=b"in", encoding="json",
        tags={"team.owner": "ada"}, policy=Policy(), idempotency_key=None, fingerprint=b"",
        state=State.WAITING, blocking_reason=BlockingReason.WAITING_FOR_WORKER,
        attempt_state=AttemptState.PENDING_FIRST, ownership=None, epoch=0, version=0, generation=0, plain=True,
        created_at=T0 - MINUTE, changed_at=T0 - MINUTE, started_at=None, ended_at=None, ready_at=None,
        deadline_at=None, attempt_timeout_at=None, attempt_timeout_left=None, purge_at=None, lease=None, former=None,
        attempt_index=0, attempt_origin=AttemptOrigin.FRESH, attempt_started_at=None, retry_count=0, reclaim_count=0,
        replay_count=0, step_seq=0, progress_percent=None, progress_message=None, failure_message=None,
        failure_category=None, cancelled_by=None, cancel_reason=None, hold_reason=None, signal_seq=0,
        flow_id=None, member_name=None, parent_id=None, has_children=False, cancel_request=None,
        suspension_count=0, resumption=None,
    )  # fmt: skip
    return replace(base, **changes)


def live_lease(**changes: Any) -> HeldLease:
    """A lease that has ten of its thirty seconds behind it at T0."""
    began = T0 - 10 * SECOND
    base = HeldLease(
        id=LEASE_ID, worker=WORKER, ttl=TTL, acquired_at=began, expires_at=began + TTL, check_at=began + TTL,
        resumed=False,
    )  # fmt: skip
    return replace(base, **changes)


def former_lease(**changes: Any) -> FormerLease:
    """The lease of the epoch before the present one."""
    base = FormerLease(id=FORMER_ID, epoch=EPOCH - 1, worker=OTHER_WORKER, end="release", digest=None, until=None)
    return replace(base, **changes)


def started(**changes: Any) -> Execution:
    """An execution whose first attempt was started a minute ago and given back, and that waits to go on."""
    values: dict[str, Any] = {
        "epoch": EPOCH,
        "version": 7,
        "attempt_state": AttemptState.INTERRUPTED,
        "started_at": T0 - MINUTE,
        "attempt_started_at": T0 - MINUTE,
        "former": former_lease(),
    }
    return fresh(**(values | changes))


def leased(**changes: Any) -> Execution:
    """An execution whose attempt is running under a live lease."""
    values: dict[str, Any] = {
        "state": State.ACTIVE,
        "blocking_reason": BlockingReason.NONE,
        "attempt_state": AttemptState.RUNNING,
        "ownership": Ownership.LEASED,
        "lease": live_lease(),
    }
    return started(**(values | changes))


def kept(ownership: Ownership, **changes: Any) -> Execution:
    """An execution that lost its lease and is kept for a hand-off."""
    end = "lease_expired" if ownership is Ownership.EXPIRED else "lease_revoked"
    values: dict[str, Any] = {
        "state": State.ACTIVE,
        "attempt_state": AttemptState.PENDING_RECLAIM,
        "ownership": ownership,
        "former": former_lease(end=end),
    }
    return started(**(values | changes))


def delayed(**changes: Any) -> Execution:
    """An execution whose attempt rests for another minute."""
    values = {"state": State.DELAYED, "blocking_reason": BlockingReason.WAITING_FOR_DELAY, "ready_at": T0 + MINUTE}
    return started(**(values | changes))


def held(**changes: Any) -> Execution:
    """An execution that an operator holds."""
    values = {"state": State.BLOCKED, "blocking_reason": BlockingReason.PAUSED_BY_OPERATOR, "hold_reason": "look"}
    return started(**(values | changes))


def suspended(**changes: Any) -> Execution:
    """An execution that is suspended until a signal comes."""
    values = {"state": State.SUSPENDED, "blocking_reason": BlockingReason.WAITING_FOR_SIGNAL}
    return started(**(values | changes))


def ended(state: State, **changes: Any) -> Execution:
    """An execution that ended a second ago."""
    values: dict[str, Any] = {
        "state": state,
        "blocking_reason": BlockingReason.NONE,
        "attempt_state": AttemptState.TERMINAL,
        "ended_at": T0 - SECOND,
        "purge_at": T0 + timedelta(days=30),
    }
    return started(**(values | changes))


# Every pair of state and ownership that there is, by name.
SITUATIONS: dict[str, Callable[..., Execution]] = {
    "waiting": started,
    "delayed": delayed,
    "blocked": held,
    "leased": leased,
    "kept expired": lambda **changes: kept(Ownership.EXPIRED, **changes),
    "kept revoked": lambda **changes: kept(Ownership.REVOKED, **changes),
    "suspended": suspended,
    "completed": lambda **changes: ended(State.COMPLETED, **changes),
    "failed": lambda **changes: ended(State.FAILED, **changes),
    "cancelled": lambda **changes: ended(State.CANCELLED, **changes),
    "expired": lambda **changes: ended(State.EXPIRED, **changes),
    "skipped": lambda **changes: ended(State.SKIPPED, **changes),
}
ENDED = frozenset({"completed", "failed", "cancelled", "expired", "skipped"})
LIVE = frozenset(SITUATIONS) - ENDED


def fence_of(execution: Execution, **changes: Any) -> Fence:
    """The fence of the live lease, or one that differs from it."""
    fence = execution.fence
    assert fence is not None, "only a leased execution has a fence"
    return replace(fence, **changes)


def broken_invariants(execution: Execution) -> list[str]:
    """What must hold of every stored execution and does not."""
    return [name for name, holds in _invariants(execution) if not holds]


def _invariants(item: Execution) -> Iterator[tuple[str, bool]]:
    terminal, is_leased = item.state in TERMINAL, item.ownership is Ownership.LEASED
    yield "active means owned or kept", (item.state is State.ACTIVE) == (item.ownership is not None)
    yield "leased means lease columns", is_leased == (item.lease is not None)
    yield "leased means running", is_leased == (item.attempt_state is AttemptState.RUNNING)
    yield "running means started", not is_leased or item.attempt_started_at is not None
    yield (
        "kept means pending reclaim",
        item.state is not State.ACTIVE or is_leased or (item.attempt_state is AttemptState.PENDING_RECLAIM),
    )
    yield "terminal means an end", terminal == (item.ended_at is not None)
    yield "terminal means a purge time", terminal == (item.purge_at is not None)
    yield "terminal means no other due time", not terminal or (item.ready_at, item.attempt_timeout_left) == (None, None)
    yield (
        "terminal means attempt ended",
        not terminal or item.started_at is None or (item.attempt_state is AttemptState.TERMINAL),
    )
    yield "delayed means a time", item.state is not State.DELAYED or item.ready_at is not None
    yield "waiting means no time", item.state is not State.WAITING or item.ready_at is None
    yield "armed means leased", item.attempt_timeout_at is None or is_leased
    yield "armed or left, not both", item.attempt_timeout_at is None or item.attempt_timeout_left is None
    is_held = item.state is State.BLOCKED and item.blocking_reason is BlockingReason.PAUSED_BY_OPERATOR
    yield "held means a reason", (item.hold_reason is not None) == is_held
    yield (
        "interrupted means started",
        item.attempt_state is not AttemptState.INTERRUPTED or (item.attempt_started_at is not None),
    )
    yield "started means an attempt was", item.attempt_started_at is None or item.started_at is not None
    yield "retries within the policy", item.retry_count <= item.policy.max_retries
    yield "reclaims within the policy", item.reclaim_count <= item.policy.max_reclaims
    yield "replays within the policy", item.replay_count <= item.policy.max_replays
    yield "generation counts replays", item.generation == item.replay_count
