"""Builders of records for tests of the pure core, and the invariants of a stored execution."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from flowfabric.core.executions.records import AttemptOrigin, Execution, FormerLease, HeldLease
from flowfabric.core.executions.states import TERMINAL, AttemptState, BlockingReason, Ownership, State
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


def make_new(**changes: Any) -> Execution:
    """Return an execution as its submit stores it, waiting and never attempted."""
    base = Execution(
        id=ID,
        namespace="default",
        lane="default",
        kind="job",
        route_id=1,
        priority=0,
        payload=b"in",
        encoding="json",
        tags={"team.owner": "ada"},
        policy=Policy(),
        idempotency_key=None,
        fingerprint=b"",
        state=State.WAITING,
        blocking_reason=BlockingReason.WAITING_FOR_WORKER,
        attempt_state=AttemptState.PENDING_FIRST,
        ownership=None,
        epoch=0,
        version=0,
        generation=0,
        is_standalone=True,
        created_at=T0 - MINUTE,
        changed_at=T0 - MINUTE,
        started_at=None,
        ended_at=None,
        ready_at=None,
        deadline_at=None,
        attempt_timeout_at=None,
        attempt_timeout_left=None,
        purge_at=None,
        lease=None,
        former=None,
        attempt_index=0,
        attempt_origin=AttemptOrigin.FRESH,
        attempt_started_at=None,
        retry_count=0,
        reclaim_count=0,
        replay_count=0,
        progress_percent=None,
        progress_message=None,
        failure_message=None,
        failure_category=None,
        cancelled_by=None,
        cancel_reason=None,
        hold_reason=None,
        signal_seq=0,
        flow_id=None,
        member_name=None,
        parent_id=None,
        has_children=False,
        cancel_request=None,
        suspension_count=0,
        resumption=None,
    )
    return replace(base, **changes)


def make_live_lease(**changes: Any) -> HeldLease:
    """Return a lease that has used ten of its thirty seconds at T0."""
    acquired_at = T0 - 10 * SECOND
    base = HeldLease(
        id=LEASE_ID,
        worker=WORKER,
        ttl=TTL,
        acquired_at=acquired_at,
        expires_at=acquired_at + TTL,
        check_at=acquired_at + TTL,
        resumed=False,
    )
    return replace(base, **changes)


def make_former_lease(**changes: Any) -> FormerLease:
    """Return the lease of the previous epoch."""
    base = FormerLease(id=FORMER_ID, epoch=EPOCH - 1, worker=OTHER_WORKER, end="release", digest=None, until=None)
    return replace(base, **changes)


def make_started(**changes: Any) -> Execution:
    """Return a waiting execution whose first attempt started a minute ago and released its lease."""
    values: dict[str, Any] = {
        "epoch": EPOCH,
        "version": 7,
        "attempt_state": AttemptState.INTERRUPTED,
        "started_at": T0 - MINUTE,
        "attempt_started_at": T0 - MINUTE,
        "former": make_former_lease(),
    }
    return make_new(**(values | changes))


def make_leased(**changes: Any) -> Execution:
    """Return an execution whose attempt runs under a live lease."""
    values: dict[str, Any] = {
        "state": State.ACTIVE,
        "blocking_reason": BlockingReason.NONE,
        "attempt_state": AttemptState.RUNNING,
        "ownership": Ownership.LEASED,
        "lease": make_live_lease(),
    }
    return make_started(**(values | changes))


def make_kept(ownership: Ownership, **changes: Any) -> Execution:
    """Return an execution that lost its lease and waits for a reclaim."""
    end = "lease_expired" if ownership is Ownership.EXPIRED else "lease_revoked"
    values: dict[str, Any] = {
        "state": State.ACTIVE,
        "attempt_state": AttemptState.PENDING_RECLAIM,
        "ownership": ownership,
        "former": make_former_lease(end=end),
    }
    return make_started(**(values | changes))


def make_delayed(**changes: Any) -> Execution:
    """Return an execution that is delayed for another minute."""
    values = {"state": State.DELAYED, "blocking_reason": BlockingReason.WAITING_FOR_DELAY, "ready_at": T0 + MINUTE}
    return make_started(**(values | changes))


def make_held(**changes: Any) -> Execution:
    """Return an execution that an operator holds."""
    values = {"state": State.BLOCKED, "blocking_reason": BlockingReason.PAUSED_BY_OPERATOR, "hold_reason": "look"}
    return make_started(**(values | changes))


def make_suspended(**changes: Any) -> Execution:
    """Return an execution that is suspended until a signal arrives."""
    values = {"state": State.SUSPENDED, "blocking_reason": BlockingReason.WAITING_FOR_SIGNAL}
    return make_started(**(values | changes))


def make_ended(state: State, **changes: Any) -> Execution:
    """Return an execution that ended a second ago."""
    values: dict[str, Any] = {
        "state": state,
        "blocking_reason": BlockingReason.NONE,
        "attempt_state": AttemptState.TERMINAL,
        "ended_at": T0 - SECOND,
        "purge_at": T0 + timedelta(days=30),
    }
    return make_started(**(values | changes))


# A builder for every pair of state and ownership, by name.
SITUATIONS: dict[str, Callable[..., Execution]] = {
    "waiting": make_started,
    "delayed": make_delayed,
    "blocked": make_held,
    "leased": make_leased,
    "kept expired": lambda **changes: make_kept(Ownership.EXPIRED, **changes),
    "kept revoked": lambda **changes: make_kept(Ownership.REVOKED, **changes),
    "suspended": make_suspended,
    "completed": lambda **changes: make_ended(State.COMPLETED, **changes),
    "failed": lambda **changes: make_ended(State.FAILED, **changes),
    "cancelled": lambda **changes: make_ended(State.CANCELLED, **changes),
    "expired": lambda **changes: make_ended(State.EXPIRED, **changes),
    "skipped": lambda **changes: make_ended(State.SKIPPED, **changes),
}
ENDED = frozenset({"completed", "failed", "cancelled", "expired", "skipped"})
LIVE = frozenset(SITUATIONS) - ENDED


def get_fence(execution: Execution, **changes: Any) -> Fence:
    """Return the fence of the execution's live lease, with these fields changed."""
    fence = execution.fence
    assert fence is not None, "only a leased execution has a fence"
    return replace(fence, **changes)


def find_broken_invariants(execution: Execution) -> list[str]:
    """Return the names of the invariants that a stored execution violates."""
    return [name for name, holds in _invariants(execution) if not holds]


def _invariants(execution: Execution) -> Iterator[tuple[str, bool]]:
    terminal, is_leased = execution.state in TERMINAL, execution.ownership is Ownership.LEASED
    yield (
        "active means leased or pending reclaim",
        (execution.state is State.ACTIVE) == (execution.ownership is not None),
    )
    yield "leased means lease columns", is_leased == (execution.lease is not None)
    yield "leased means running", is_leased == (execution.attempt_state is AttemptState.RUNNING)
    yield "running means started", not is_leased or execution.attempt_started_at is not None
    yield (
        "active without a lease means pending reclaim",
        execution.state is not State.ACTIVE or is_leased or (execution.attempt_state is AttemptState.PENDING_RECLAIM),
    )
    yield "terminal means an end", terminal == (execution.ended_at is not None)
    yield "terminal means a purge time", terminal == (execution.purge_at is not None)
    yield (
        "terminal means no other due time",
        not terminal or (execution.ready_at, execution.attempt_timeout_left) == (None, None),
    )
    yield (
        "terminal means attempt ended",
        not terminal or execution.started_at is None or (execution.attempt_state is AttemptState.TERMINAL),
    )
    yield "delayed means a time", execution.state is not State.DELAYED or execution.ready_at is not None
    yield "waiting means no time", execution.state is not State.WAITING or execution.ready_at is None
    yield "timeout armed means leased", execution.attempt_timeout_at is None or is_leased
    yield (
        "timeout armed or paused, not both",
        execution.attempt_timeout_at is None or execution.attempt_timeout_left is None,
    )
    is_held = execution.state is State.BLOCKED and execution.blocking_reason is BlockingReason.PAUSED_BY_OPERATOR
    yield "held means a reason", (execution.hold_reason is not None) == is_held
    yield (
        "interrupted means started",
        execution.attempt_state is not AttemptState.INTERRUPTED or (execution.attempt_started_at is not None),
    )
    yield (
        "attempt started means execution started",
        execution.attempt_started_at is None or execution.started_at is not None,
    )
    yield "retries within the policy", execution.retry_count <= execution.policy.max_retries
    yield "reclaims within the policy", execution.reclaim_count <= execution.policy.max_reclaims
    yield "replays within the policy", execution.replay_count <= execution.policy.max_replays
    yield "generation counts replays", execution.generation == execution.replay_count
