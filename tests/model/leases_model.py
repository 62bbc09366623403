"""The reference model of `engine.leases`: claims, and the calls of a worker under its fence."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from flowfabric.engine import (
    AttemptOutcome,
    AttemptState,
    Delayed,
    Ended,
    FailureClass,
    Fence,
    LaneState,
    Lease,
    NotFound,
    Refused,
    Released,
    Renewed,
    RetryScheduled,
    Satisfied,
    State,
    Step,
    Suspended,
    WorkerId,
)
from tests.model.records import KEPT_EXPIRED, KEPT_REVOKED, Execution
from tests.model.stores import outcome_or_refusal
from tests.model.waits_model import SuspendOptions, suspend
from tests.model.world import World, check_capabilities, make_refusal, may_retry, view_lease

Outcome = TypeVar("Outcome")


class Leases:
    """The calls of a worker."""

    def __init__(self, world: World) -> None:
        self._world = world

    def claim(
        self,
        namespace: str,
        *,
        lanes: Sequence[str],
        worker: str,
        capabilities: Collection[str],
        limit: int,
        lease_ttl: timedelta | None,
        kinds: Sequence[str] | None,
    ) -> list[Lease]:
        """Claim the first eligible executions, ordered by priority, then resumed before new, then by age."""
        fitting = [
            execution
            for execution in self._world.executions.values()
            if execution.state is State.WAITING
            and execution.namespace == namespace
            and execution.lane in lanes
            and self._world.lane(namespace, execution.lane) is not LaneState.PAUSED
            and (kinds is None or execution.kind in kinds)
            and execution.requires <= set(capabilities)
        ]
        return [self._begin(execution, worker, lease_ttl) for execution in sorted(fitting, key=_claim_order)[:limit]]

    def claim_execution(
        self, namespace: str, *, id: UUID, worker: str, capabilities: Collection[str], lease_ttl: timedelta | None
    ) -> Lease:
        """Claim this execution."""
        execution = self._world.find(namespace, id)
        if execution.state is not State.WAITING:
            raise make_refusal(execution, "execution_not_leaseable")
        if self._world.lane(namespace, execution.lane) is LaneState.PAUSED:
            raise make_refusal(execution, "lane_paused")
        check_capabilities(execution, capabilities)
        return self._begin(execution, worker, lease_ttl)

    def claim_resumed(
        self, namespace: str, *, id: UUID, worker: str, capabilities: Collection[str], lease_ttl: timedelta | None
    ) -> Lease:
        """Claim this execution only if its attempt was interrupted."""
        execution = self._world.find(namespace, id)
        if execution.attempt_state is not AttemptState.INTERRUPTED or execution.state is not State.WAITING:
            raise make_refusal(execution, "not_a_resumed_execution")
        return self.claim_execution(namespace, id=id, worker=worker, capabilities=capabilities, lease_ttl=lease_ttl)

    def held(self, namespace: str, *, instance: str) -> list[Lease]:
        """Return the live leases of an instance."""
        leased = [
            execution
            for execution in self._world.executions.values()
            if execution.namespace == namespace and execution.lease
        ]
        mine = [
            execution
            for execution in leased
            if execution.lease
            and execution.lease.worker.instance == instance
            and execution.lease.expires_at > self._world.now
        ]
        return [
            view_lease(execution)
            for execution in sorted(
                mine, key=lambda execution: (execution.lease and execution.lease.acquired_at, execution.id)
            )
        ]

    def reclaim(self, namespace: str, *, grant: UUID, worker: str, lease_ttl: timedelta | None) -> Lease | Ended:
        """Start a new attempt of an execution that is kept for hand-off. A repeated call returns the same outcome."""
        world, stored_grant = self._world, self._world.grants.get(grant)
        execution = world.executions.get(stored_grant.execution_id) if stored_grant else None
        if stored_grant is None or execution is None or execution.namespace != namespace:
            raise NotFound("grant_not_found", "")
        if stored_grant.worker != WorkerId(worker, worker):
            raise Refused("different_worker", "")
        if execution.lease and execution.lease.id == stored_grant.consumed_by:
            return view_lease(execution)
        if stored_grant.consumed_by == UUID(int=0):
            return Ended(State.FAILED)
        if execution.ownership not in (KEPT_EXPIRED, KEPT_REVOKED):
            raise make_refusal(execution, "execution_not_reclaimable")
        if stored_grant.consumed_by is not None:
            raise make_refusal(execution, "grant_already_consumed")
        if stored_grant.expires_at <= world.now:
            raise make_refusal(execution, "grant_expired")
        counts = execution.ownership == KEPT_EXPIRED
        if counts and execution.reclaims >= execution.policy.max_reclaims:
            world.grants[grant] = replace(stored_grant, consumed_by=UUID(int=0))
            world.exhaust(execution)
            return Ended(State.FAILED)
        before = replace(execution)
        world.end_attempt(execution, AttemptOutcome.RECLAIMED)
        world.open_attempt(execution, "reclaimed")
        execution.reclaims += counts
        lease = world.begin_lease(execution, worker, lease_ttl)
        world.grants[grant] = replace(stored_grant, consumed_by=lease.fence.lease_id)
        world.note(execution, "lease.reclaimed", before)
        return lease

    def renew(self, namespace: str, *, fence: Fence) -> Renewed:
        """Let the lease expire its `ttl` from now, but never earlier than before."""
        lease = self._world.find_owned(namespace, fence).lease
        assert lease is not None, "the fence owns the live lease"
        lease.expires_at = max(lease.expires_at, self._world.now + lease.ttl)
        return Renewed(lease.expires_at)

    def renew_many(self, namespace: str, *, fences: Sequence[Fence]) -> list[Any]:
        """Renew each lease independently."""
        return [outcome_or_refusal(self.renew, namespace, fence=fence) for fence in fences]

    def complete_many(self, namespace: str, *, results: Sequence[tuple[Fence, bytes]]) -> list[Any]:
        """Complete each lease independently, in order."""
        complete = partial(outcome_or_refusal, self.complete, namespace, steps=[])
        return [complete(fence=fence, result=result) for fence, result in results]

    def progress(self, namespace: str, *, fence: Fence, percent: int | None, message: str | None) -> None:
        """Record progress. An omitted value stays unchanged."""
        execution = self._world.find_owned(namespace, fence)
        execution.percent = execution.percent if percent is None else percent
        execution.message = execution.message if message is None else message

    def checkpoint(self, namespace: str, *, fence: Fence, steps: list[Step]) -> int:
        """Record step results."""
        self._world.record(self._world.find_owned(namespace, fence), steps)
        return len(steps)

    def complete(self, namespace: str, *, fence: Fence, result: bytes, steps: list[Step]) -> Ended:
        """Complete the execution. Its epoch stays the same."""

        def end(execution: Execution, request: tuple[Any, ...]) -> Ended:
            before, outcome = replace(execution), Ended(State.COMPLETED)
            self._world.end_attempt(execution, AttemptOutcome.SUCCESS, result)
            self._world.end_lease(execution, "execution_not_active", moves=False, request=request, outcome=outcome)
            self._world.terminate(execution, State.COMPLETED)
            self._world.note(execution, "completion.completed", before)
            return outcome

        return self._end_lease_once(namespace, fence, ("complete", result), steps, end)

    def fail(
        self,
        namespace: str,
        *,
        fence: Fence,
        message: str,
        failure_class: FailureClass,
        category: str | None,
        steps: list[Step],
    ) -> RetryScheduled | Ended:
        """Fail the attempt. The stored policy decides whether a new attempt follows."""
        category_name = category or failure_class.value

        def end(execution: Execution, request: tuple[Any, ...]) -> RetryScheduled | Ended:
            retried = may_retry(execution, failure_class, category_name)
            at = self._world.fail_attempt(execution, category_name, retried=retried, moves=False, request=request)
            outcome = Ended(State.FAILED) if at is None else RetryScheduled(at)
            assert execution.former is not None, "its lease has just ended"
            execution.former.outcome = outcome
            return outcome

        return self._end_lease_once(namespace, fence, ("fail", message, failure_class, category_name), steps, end)

    def delay(self, namespace: str, *, fence: Fence, after: timedelta, steps: list[Step]) -> Delayed | Released:
        """Release the lease and resume the same attempt later."""
        return self._pause(namespace, fence, ("delay", after), steps)

    def suspend(self, namespace: str, *, fence: Fence, steps: list[Step], **options: Any) -> Suspended | Satisfied:
        """Suspend the same attempt until a condition is satisfied."""
        return suspend(self._world, namespace, fence, SuspendOptions(**options), steps)

    def release(self, namespace: str, *, fence: Fence) -> Delayed | Released:
        """Release the lease so that the same attempt can be resumed immediately."""
        return self._pause(namespace, fence, ("release",), [])

    def cancel(self, namespace: str, *, fence: Fence, reason: str, steps: list[Step]) -> Ended:
        """Cancel the execution as its worker."""

        def end(execution: Execution, request: tuple[Any, ...]) -> Ended:
            principal = execution.lease.worker.instance if execution.lease else ""
            return self._world.cancel(execution, "lease_holder", principal, reason, request)

        return self._end_lease_once(namespace, fence, ("cancel", reason), steps, end)

    def _begin(self, execution: Execution, worker: str, ttl: timedelta | None) -> Lease:
        before = replace(execution)
        lease = self._world.begin_lease(execution, worker, ttl)
        self._world.note(execution, "lease.acquired", before)
        return lease

    def _pause(
        self, namespace: str, fence: Fence, request_key: tuple[Any, ...], steps: list[Step]
    ) -> Delayed | Released:
        def end(execution: Execution, request: tuple[Any, ...]) -> Delayed | Released:
            before, now = replace(execution), self._world.now
            until = now + request_key[1] if request_key[0] == "delay" else None
            outcome = Delayed(until) if until else Released()
            self._world.end_lease(execution, "execution_not_active", request=request, outcome=outcome)
            execution.attempt_state = AttemptState.INTERRUPTED
            later = until is not None and until > now
            execution.state, execution.ready_at = (State.DELAYED, until) if later else (State.WAITING, None)
            self._world.note(execution, "lease.delayed" if later else "lease.released", before)
            return outcome

        return self._end_lease_once(namespace, fence, request_key, steps, end)

    def _end_lease_once(
        self,
        namespace: str,
        fence: Fence,
        request_key: tuple[Any, ...],
        steps: list[Step],
        end: Callable[[Execution, tuple[Any, ...]], Outcome],
    ) -> Outcome:
        """Record the steps and end the lease.

        A repeated request returns the first outcome. A request for the same lease with different content is rejected.
        """
        request = (*request_key, *((step.name, step.status, step.payload) for step in steps))
        former = self._world.find(namespace, fence.execution_id).former
        if former and former.fence == fence and former.request == request:
            first: Outcome = former.outcome
            return first
        execution = self._world.find_owned(namespace, fence)
        self._world.record(execution, steps)
        return end(execution, request)


def _claim_order(execution: Execution) -> tuple[int, bool, datetime, UUID]:
    new = execution.attempt_state is not AttemptState.INTERRUPTED
    return -execution.priority, new, execution.created_at, execution.id
