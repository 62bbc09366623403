"""The reference model's world: all executions, keys, grants and lanes, and the few changes everything is made of."""

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
)  # fmt: skip
from flowfabric.testing import VirtualClock
from tests.model.records import (
    KEPT_EXPIRED,
    KEPT_REVOKED,
    LEASED,
    OUTCOMES,
    AttemptRow,
    EventRow,
    Execution,
    Former,
    Held,
    StepRow,
)
from tests.model.waits import Ring, Slot, slot_symbol

_SYMBOLS = 1 << 120


def symbol(number: int) -> UUID:
    """The id that stands for the `number`-th one which a store minted; above every id that a caller chooses."""
    return UUID(int=_SYMBOLS + number)


@dataclass
class Key:
    """What an idempotency key stands for, until when."""

    execution_id: UUID
    body: tuple[Any, ...]
    expires_at: datetime


class World:
    """Everything that is stored, and the changes that every operation is made of."""

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
        """A fresh id of an execution, lease or grant."""
        self._minted += 1
        return symbol(self._minted)

    def new_slot(self, execution: Execution, key: str, kind: WaitpointKind) -> Slot:
        """A pending waitpoint."""
        number = 1 + sum(slot.key == key for slot in execution.slots)
        slot = Slot(slot_symbol(execution.id, key, number), key, kind, self.now)
        execution.slots.append(slot)
        execution.plain = False
        return slot

    def declare(self, execution: Execution) -> None:
        """The standing waitpoints of a generation."""
        for key in execution.declared:
            self.new_slot(execution, key, WaitpointKind.STANDING)

    def find(self, namespace: str, id_: UUID) -> Execution:
        """The execution; foreign ones are not found."""
        found = self.executions.get(id_)
        if found is None or found.namespace != namespace:
            raise NotFound("execution_not_found", "")
        return found

    def lane(self, namespace: str, lane: str) -> LaneState:
        return self.lanes.get((namespace, lane), LaneState.ACTIVE)

    def owned(self, namespace: str, fence: Fence) -> Execution:
        """The execution, if the fence is that of its live lease and the lease has time left. Else, in this order: the
        last fence is told why it ended, a live lease past its time that it expired, older ones that they are stale."""
        found = self.find(namespace, fence.execution_id)
        former = found.former
        if found.lease and found.fence == fence and found.lease.expires_at > self.now:
            return found
        if former and former.fence == fence:
            raise refused(found, former.code)
        if found.fence == fence:
            raise refused(found, "lease_expired")
        if found.lease or (former and fence.epoch < former.fence.epoch):
            raise refused(found, "stale_lease")
        raise refused(found, "execution_not_active")

    def begin_lease(self, execution: Execution, worker: str, ttl: timedelta | None) -> Lease:
        """A new epoch and a new random id; an interrupted attempt goes on with the time it has left."""
        now, policy = self.now, execution.policy
        term = ttl or seconds(policy.lease_ttl)
        resumed = execution.attempt_state is AttemptState.INTERRUPTED
        execution.lease = Held(self.mint(), WorkerId(worker, worker), term, now, now + term, resumed)
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
        return lease_of(execution)

    def end_lease(
        self, execution: Execution, code: str, *, moves: bool = True,
        request: tuple[Any, ...] | None = None, answer: Any = None,
    ) -> None:  # fmt: skip
        """The lease, if there is one, is lost or given up; the epoch moves unless the work ended by its holder's
        completion or final failure. What is left of the attempt's time is kept."""
        fence, due = execution.fence, execution.attempt_timeout_at
        if fence is not None:
            execution.former = Former(fence, code, request, answer)
            execution.resumption = None
        execution.time_left = None if due is None else max(due - self.now, timedelta(0))
        execution.lease = execution.ownership = execution.attempt_timeout_at = None
        execution.epoch += moves

    def end_attempt(
        self, execution: Execution, outcome: AttemptOutcome, result: bytes | None = None, category: str | None = None
    ) -> None:
        """The current attempt becomes history, if it ever started."""
        started = execution.attempt_started_at
        if started is not None:
            row = AttemptRow(
                execution.attempt_index, execution.generation, execution.origin, started, self.now, outcome, result,
                category,
            )  # fmt: skip
            execution.attempts.append(row)

    def open_attempt(self, execution: Execution, origin: str) -> None:
        """The next attempt is pending; an index that never started is used again."""
        execution.attempt_index += execution.attempt_started_at is not None
        execution.attempt_started_at = execution.time_left = None
        execution.origin = origin

    def terminate(self, execution: Execution, state: State) -> None:
        """The end: nothing is armed or open any more, and retention begins to count."""
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
        self, execution: Execution, event: str, before: Execution, principal: str | None = None,
        reason: str | None = None,
    ) -> None:  # fmt: skip
        """One event row. The one that ends a lease speaks of the attempt that was running."""
        family, name = event.split(".")
        lease = execution.lease or before.lease
        ends = before.lease is not None and execution.lease is None
        row = EventRow(
            execution.version + 1, family, name, self.now, execution.state, execution.epoch, execution.generation,
            before.attempt_index if ends else execution.attempt_index, lease.id if lease else None, ends, principal,
            reason,
        )  # fmt: skip
        execution.events.append(row)

    def lose_lease(
        self, execution: Execution, event: str, principal: str | None = None, reason: str | None = None
    ) -> None:
        """Expiry or revocation under the policy: kept for a hand-off, or requeued as a new attempt. Expiries count,
        and past the cap the execution fails."""
        before, expired = replace(execution), event == "lease.expired"
        keeps = execution.policy.on_lease_loss is OnLeaseLoss.HAND_OFF
        if expired and not keeps and execution.reclaims >= execution.policy.max_reclaims:
            return self.exhaust(execution)
        self.end_lease(execution, "lease_expired" if expired else "lease_revoked")
        execution.attempt_state = AttemptState.PENDING_RECLAIM
        if keeps:
            execution.ownership = KEPT_EXPIRED if expired else KEPT_REVOKED
        else:
            self.end_attempt(execution, AttemptOutcome.RECLAIMED)
            self.open_attempt(execution, "reclaimed")
            execution.reclaims += expired
            execution.state = State.WAITING
        return self.note(execution, event, before, principal, reason)

    def exhaust(self, execution: Execution) -> None:
        """Too many workers died of it."""
        before = replace(execution)
        execution.category = "max_reclaims_exceeded"
        self.end_attempt(execution, AttemptOutcome.RECLAIMED, category=execution.category)
        self.end_lease(execution, "lease_expired")
        self.terminate(execution, State.FAILED)
        self.note(execution, "completion.failed", before)

    def fail_attempt(
        self, execution: Execution, category: str, *, retried: bool, ends: State = State.FAILED, moves: bool,
        request: tuple[Any, ...] | None = None,
    ) -> datetime | None:  # fmt: skip
        """The attempt ends badly: a retry after its backoff, whose time is answered, or the end."""
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
        """The execution ends cancelled, whoever works on it."""
        before, answer = replace(execution), Ended(State.CANCELLED)
        self.end_attempt(execution, AttemptOutcome.CANCELLED)
        self.end_lease(execution, "execution_not_active", request=request, answer=answer)
        self.terminate(execution, State.CANCELLED)
        execution.cancelled_by, execution.cancel_reason = source, reason
        self.note(execution, "completion.cancelled", before, principal, reason)
        return answer

    def end_grants(self, id_: UUID) -> None:
        """Grants that were not used end with their generation."""
        for name, grant in self.grants.items():
            if grant.execution_id == id_ and grant.consumed_by is None:
                self.grants[name] = replace(grant, expires_at=grant.granted_at)

    def record(self, execution: Execution, steps: list[Step]) -> None:
        """Open steps may change, final ones may only be repeated; one contradiction spoils the whole call."""
        for step in steps:
            known = answering(execution, step.name)
            if known and known.status != "open" and (known.status, known.payload) != (step.status, step.payload):
                raise Conflict("step_already_recorded", "")
        for step in steps:
            known = answering(execution, step.name)
            if known:
                known.status, known.payload = step.status.value, step.payload
            else:
                execution.steps.append(StepRow(step.name, step.status.value, step.payload, execution.generation))


def may_retry(execution: Execution, failure_class: FailureClass, category: str) -> bool:
    """Never after permanent or cancelled failures; else while retries are left, of categories that the policy names."""
    policy = execution.policy
    return (
        failure_class not in (FailureClass.PERMANENT, FailureClass.CANCELLED)
        and execution.retries < policy.max_retries
        and (not policy.retryable_categories or category in policy.retryable_categories)
    )


def check_capabilities(execution: Execution, offered: Collection[str]) -> None:
    """Everything that is required must be offered."""
    if not execution.requires <= set(offered):
        raise Refused("capability_mismatch", "")


def answering(execution: Execution, name: str) -> StepRow | None:
    """The recorded step of that name that answers at present."""
    return next((step for step in execution.steps if step.name == name and step.struck_by is None), None)


def lease_of(execution: Execution) -> Lease:
    """The live lease as its worker sees it."""
    held, fence = execution.lease, execution.fence
    assert held is not None and fence is not None, "only a leased execution has a lease to show"
    return Lease(
        fence=fence, namespace=execution.namespace, lane=execution.lane, kind=execution.kind,
        priority=execution.priority, payload=execution.payload, encoding="json", tags=dict(execution.tags),
        worker=held.worker, origin="resumed" if held.resumed else execution.origin,
        attempt_index=execution.attempt_index, generation=execution.generation, acquired_at=held.acquired_at,
        expires_at=held.expires_at, ttl=held.ttl, deadline_at=execution.deadline_at,
        attempt_timeout_at=execution.attempt_timeout_at, plain=execution.plain, resumption=execution.resumption,
    )  # fmt: skip


def refused(execution: Execution, code: str) -> Refused:
    """A refusal carries the current state, epoch and outcome."""
    outcome = OUTCOMES.get(execution.state, TerminalOutcome.NONE)
    return Refused(
        code, "", execution_id=execution.id, state=execution.state, epoch=execution.epoch, outcome=outcome,
        attempt_index=execution.attempt_index, generation=execution.generation,
    )  # fmt: skip


def backoff(policy: Backoff, retries: int) -> timedelta:
    """The delay before the next retry, without jitter."""
    initial, most = seconds(policy.initial), seconds(policy.most)
    return min(initial if policy.kind is BackoffKind.FIXED else initial * policy.multiplier**retries, most)


def seconds(value: object) -> timedelta:
    """A duration of a policy, which made it a `timedelta`."""
    assert isinstance(value, timedelta), "policies normalise their durations"
    return value
