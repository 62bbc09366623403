"""The state of the reference model: executions, keys, grants and lanes, and the basic changes of all operations."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from flowfabric.engine import (
    AttemptOutcome,
    AttemptState,
    Backoff,
    BackoffKind,
    Conflict,
    Ended,
    FailureClass,
    Fence,
    Grant,
    LaneState,
    Lease,
    NotFound,
    OnLeaseLoss,
    Refused,
    State,
    Step,
    TerminalOutcome,
    Trigger,
    WaitpointKind,
    WorkerId,
)
from flowfabric.testing import VirtualClock
from tests.model.records import (
    KEPT_EXPIRED,
    KEPT_REVOKED,
    LEASED,
    OUTCOMES,
    AttemptRow,
    EventRow,
    Execution,
    FormerLease,
    LiveLease,
    StepRow,
)
from tests.model.wait_records import Ring, Slot, slot_symbol

_SYMBOLS = 1 << 120


def symbol(number: int) -> UUID:
    """Return the symbol of the `number`-th id that a store generated, above every id that a caller chooses."""
    return UUID(int=_SYMBOLS + number)


@dataclass
class Key:
    """The execution and the body that an idempotency key refers to, with the end of the key's window.

    `drop_at` is set if the execution was purged before that.
    """

    execution_id: UUID
    body: tuple[Any, ...]
    expires_at: datetime
    drop_at: datetime | None = None


class World:
    """The stored state, and the basic changes that all operations use."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.executions: dict[UUID, Execution] = {}
        self.gone: dict[UUID, list[EventRow]] = {}
        self.keys: dict[tuple[str, str], Key] = {}
        self.grants: dict[UUID, Grant] = {}
        self.lanes: dict[tuple[str, str], LaneState] = {}
        self.lane_events: list[tuple[str, str, str]] = []
        self.ring = Ring()
        self._minted = 0

    @property
    def now(self) -> datetime:
        return self.clock.now()

    def mint(self) -> UUID:
        """Return a new id of an execution, lease or grant."""
        self._minted += 1
        return symbol(self._minted)

    def new_slot(self, execution: Execution, key: str, kind: WaitpointKind) -> Slot:
        """Add a pending waitpoint."""
        number = 1 + sum(slot.key == key for slot in execution.slots)
        slot = Slot(slot_symbol(execution.id, key, number), key, kind, self.now)
        execution.slots.append(slot)
        execution.is_standalone = False
        return slot

    def declare(self, execution: Execution) -> None:
        """Add the standing waitpoints of a generation."""
        for key in execution.declared:
            self.new_slot(execution, key, WaitpointKind.STANDING)

    def find(self, namespace: str, id_: UUID) -> Execution:
        """Return the execution. Executions of other namespaces are not found."""
        execution = self.executions.get(id_)
        if execution is None or execution.namespace != namespace:
            raise NotFound("execution_not_found", "")
        return execution

    def lane(self, namespace: str, lane: str) -> LaneState:
        return self.lanes.get((namespace, lane), LaneState.ACTIVE)

    def find_owned(self, namespace: str, fence: Fence) -> Execution:
        """Return the execution if its live lease has this fence and has not expired. Otherwise raise the first refusal
        that applies: the code of the former lease, then an expired lease, then a stale lease, then an inactive
        execution.
        """
        execution = self.find(namespace, fence.execution_id)
        former = execution.former
        if execution.lease and execution.fence == fence and execution.lease.expires_at > self.now:
            return execution
        if former and former.fence == fence:
            raise make_refusal(execution, former.code)
        if execution.fence == fence:
            raise make_refusal(execution, "lease_expired")
        if execution.lease or (former and fence.epoch < former.fence.epoch):
            raise make_refusal(execution, "stale_lease")
        raise make_refusal(execution, "execution_not_active")

    def begin_lease(self, execution: Execution, worker: str, ttl: timedelta | None) -> Lease:
        """Start a lease with a new epoch and id. An interrupted attempt continues with its remaining timeout."""
        now, policy = self.now, execution.policy
        is_first = execution.attempt_state is AttemptState.PENDING_FIRST
        lease_ttl = ttl or seconds(policy.lease_ttl)
        resumed = execution.attempt_state is AttemptState.INTERRUPTED
        execution.lease = LiveLease(self.mint(), WorkerId(worker, worker), lease_ttl, now, now + lease_ttl, resumed)
        allowed = execution.time_left
        if allowed is None and policy.attempt_timeout is not None:
            allowed = seconds(policy.attempt_timeout)
        execution.attempt_timeout_at = None if allowed is None else now + allowed
        execution.time_left = None
        execution.epoch += 1
        execution.state, execution.ownership = State.ACTIVE, LEASED
        execution.attempt_state = AttemptState.RUNNING
        execution.started_at = execution.started_at or now
        execution.attempt_started_at = execution.attempt_started_at or now
        return view_lease(execution, has_journal=not is_first)

    def end_lease(
        self,
        execution: Execution,
        code: str,
        *,
        moves: bool = True,
        request: tuple[Any, ...] | None = None,
        outcome: Any = None,
    ) -> None:
        """End the lease, if any, and keep the remaining timeout of the attempt.

        The epoch increases unless the holder completed the execution or failed it without a retry.
        """
        fence, due = execution.fence, execution.attempt_timeout_at
        if fence is not None:
            execution.former = FormerLease(fence, code, request, outcome)
            execution.resumption = None
        execution.time_left = None if due is None else max(due - self.now, timedelta(0))
        execution.lease = execution.ownership = execution.attempt_timeout_at = None
        execution.epoch += moves

    def end_attempt(
        self, execution: Execution, outcome: AttemptOutcome, result: bytes | None = None, category: str | None = None
    ) -> None:
        """Add the current attempt to the history if it ever started."""
        started = execution.attempt_started_at
        if started is not None:
            row = AttemptRow(
                execution.attempt_index,
                execution.generation,
                execution.origin,
                started,
                self.now,
                outcome,
                result,
                category,
            )
            execution.attempts.append(row)

    def open_attempt(self, execution: Execution, origin: str) -> None:
        """Make the next attempt pending. The index of an attempt that never started is reused."""
        execution.attempt_index += execution.attempt_started_at is not None
        execution.attempt_started_at = execution.time_left = None
        execution.origin = origin

    def terminate(self, execution: Execution, state: State) -> None:
        """End the execution, clear its due times, close its waitpoints and start its retention."""
        if (wait := execution.wait) is not None:
            wait.closed_at, wait.closed_by = self.now, Trigger.ENDED
        for slot in execution.slots:
            if slot.is_open:
                slot.close(self.now, "ended")
        execution.state, execution.ended_at = state, self.now
        execution.purge_at = self.now + seconds(execution.policy.retention)
        execution.ready_at = execution.hold_reason = execution.time_left = None
        if execution.started_at is not None:
            execution.attempt_state = AttemptState.TERMINAL

    def note(
        self,
        execution: Execution,
        event: str,
        before: Execution,
        principal: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Write an event. An event that ends a lease has the index of the attempt that held the lease."""
        family, name = event.split(".")
        lease = execution.lease or before.lease
        ends = before.lease is not None and execution.lease is None
        row = EventRow(
            execution.version + 1,
            family,
            name,
            self.now,
            execution.state,
            execution.epoch,
            execution.generation,
            before.attempt_index if ends else execution.attempt_index,
            lease.id if lease else None,
            ends,
            principal,
            reason,
        )
        execution.events.append(row)

    def lose_lease(
        self, execution: Execution, event: str, principal: str | None = None, reason: str | None = None
    ) -> None:
        """End a lease that expired or was revoked, as the policy requires.

        The execution is kept for hand-off or requeued as a new attempt. If leases expire more often than the policy
        allows, the execution fails.
        """
        before, expired = replace(execution), event == "lease.expired"
        is_kept = execution.policy.on_lease_loss is OnLeaseLoss.HAND_OFF
        if expired and not is_kept and execution.reclaims >= execution.policy.max_reclaims:
            return self.exhaust(execution)
        self.end_lease(execution, "lease_expired" if expired else "lease_revoked")
        execution.attempt_state = AttemptState.PENDING_RECLAIM
        if is_kept:
            execution.ownership = KEPT_EXPIRED if expired else KEPT_REVOKED
        else:
            self.end_attempt(execution, AttemptOutcome.RECLAIMED)
            self.open_attempt(execution, "reclaimed")
            execution.reclaims += expired
            execution.state = State.WAITING
        return self.note(execution, event, before, principal, reason)

    def exhaust(self, execution: Execution) -> None:
        """Fail an execution whose leases expired too often."""
        before = replace(execution)
        execution.category = "max_reclaims_exceeded"
        self.end_attempt(execution, AttemptOutcome.RECLAIMED, category=execution.category)
        self.end_lease(execution, "lease_expired")
        self.terminate(execution, State.FAILED)
        self.note(execution, "completion.failed", before)

    def fail_attempt(
        self,
        execution: Execution,
        category: str,
        *,
        retried: bool,
        ends: State = State.FAILED,
        moves: bool,
        request: tuple[Any, ...] | None = None,
    ) -> datetime | None:
        """Fail the attempt. Return the time of the retry, or None if the execution ends."""
        before, at = replace(execution), None
        self.end_attempt(execution, AttemptOutcome.FAILURE, category=category)
        self.end_lease(execution, "execution_not_active", moves=moves or retried, request=request)
        execution.category = category
        if retried:
            at = self.now + backoff(execution.policy.backoff, execution.retries)
            self.open_attempt(execution, "retry")
            execution.retries += 1
            execution.state, execution.attempt_state = State.DELAYED, AttemptState.PENDING_RETRY
            execution.ready_at = at
            self.note(execution, "lease.retry_scheduled", before)
        else:
            self.terminate(execution, ends)
            self.note(execution, f"completion.{ends.value}", before)
        return at

    def cancel(
        self, execution: Execution, source: str, principal: str, reason: str, request: tuple[Any, ...] | None = None
    ) -> Ended:
        """Cancel the execution and end its lease."""
        before, outcome = replace(execution), Ended(State.CANCELLED)
        self.end_attempt(execution, AttemptOutcome.CANCELLED)
        self.end_lease(execution, "execution_not_active", request=request, outcome=outcome)
        self.terminate(execution, State.CANCELLED)
        execution.cancelled_by, execution.cancel_reason = source, reason
        self.note(execution, "completion.cancelled", before, principal, reason)
        return outcome

    def end_grants(self, id_: UUID) -> None:
        """Expire the unused grants of an execution."""
        for name, grant in self.grants.items():
            if grant.execution_id == id_ and grant.consumed_by is None:
                self.grants[name] = replace(grant, expires_at=grant.granted_at)

    def record(self, execution: Execution, steps: list[Step]) -> None:
        """Record steps. An open step may change. A final step may only be repeated unchanged. If one step contradicts a
        recorded step, the whole call is rejected.
        """
        for step in steps:
            recorded = find_step(execution, step.name)
            if (
                recorded
                and recorded.status != "open"
                and (recorded.status, recorded.payload) != (step.status, step.payload)
            ):
                raise Conflict("step_already_recorded", "")
        for step in steps:
            recorded = find_step(execution, step.name)
            if recorded:
                recorded.status, recorded.payload = step.status.value, step.payload
            else:
                execution.steps.append(StepRow(step.name, step.status.value, step.payload, execution.generation))


def may_retry(execution: Execution, failure_class: FailureClass, category: str) -> bool:
    """Return True if the failure class, the retry count and the category allow a retry."""
    policy = execution.policy
    return (
        failure_class not in (FailureClass.PERMANENT, FailureClass.CANCELLED)
        and execution.retries < policy.max_retries
        and (not policy.retryable_categories or category in policy.retryable_categories)
    )


def check_capabilities(execution: Execution, offered: Collection[str]) -> None:
    """Raise if a required capability is not offered."""
    if not execution.requires <= set(offered):
        raise Refused("capability_mismatch", "")


def find_step(execution: Execution, name: str) -> StepRow | None:
    """Return the valid recorded step of that name."""
    return next((step for step in execution.steps if step.name == name and step.struck_by is None), None)


def view_lease(execution: Execution, *, has_journal: bool = True) -> Lease:
    """Return the live lease as its worker sees it. Only the claim of a first attempt knows that there is no journal."""
    held, fence = execution.lease, execution.fence
    assert held is not None and fence is not None, "only a leased execution has a lease"
    return Lease(
        fence=fence,
        namespace=execution.namespace,
        lane=execution.lane,
        kind=execution.kind,
        priority=execution.priority,
        payload=execution.payload,
        encoding="json",
        tags=dict(execution.tags),
        worker=held.worker,
        origin="resumed" if held.resumed else execution.origin,
        attempt_index=execution.attempt_index,
        generation=execution.generation,
        acquired_at=held.acquired_at,
        expires_at=held.expires_at,
        ttl=held.ttl,
        deadline_at=execution.deadline_at,
        attempt_timeout_at=execution.attempt_timeout_at,
        is_standalone=execution.is_standalone,
        has_journal=has_journal,
        resumption=execution.resumption,
    )


def make_refusal(execution: Execution, code: str) -> Refused:
    """Return a refusal with the current state, epoch and outcome."""
    outcome = OUTCOMES.get(execution.state, TerminalOutcome.NONE)
    return Refused(
        code,
        "",
        execution_id=execution.id,
        state=execution.state,
        epoch=execution.epoch,
        outcome=outcome,
        attempt_index=execution.attempt_index,
        generation=execution.generation,
    )


def backoff(policy: Backoff, retries: int) -> timedelta:
    """Return the delay before the next retry, without jitter."""
    initial, max_delay = seconds(policy.initial), seconds(policy.max_delay)
    return min(initial if policy.kind is BackoffKind.FIXED else initial * policy.multiplier**retries, max_delay)


def seconds(value: object) -> timedelta:
    """Return a duration of a policy as a `timedelta`."""
    assert isinstance(value, timedelta), "policies normalize their durations"
    return value
