"""The reference model of `engine.leases`: claiming, and what a worker does under its fence."""

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
)  # fmt: skip
from tests.model.records import KEPT_EXPIRED, KEPT_REVOKED, Execution
from tests.model.sides import answer_or_refusal
from tests.model.waiting import Wish, suspend
from tests.model.world import World, check_capabilities, lease_of, may_retry, refused

Answer = TypeVar("Answer")


class Leases:
    """What a worker does."""

    def __init__(self, world: World) -> None:
        self._world = world

    def claim(
        self, namespace: str, *, lanes: Sequence[str], worker: str, capabilities: Collection[str], limit: int,
        lease_ttl: timedelta | None, kinds: Sequence[str] | None,
    ) -> list[Lease]:  # fmt: skip
        """The best of what waits and fits: by priority, resumed before new, then the oldest."""
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
        return [self._begin(execution, worker, lease_ttl) for execution in sorted(fitting, key=_turn)[:limit]]

    def claim_execution(
        self, namespace: str, *, id: UUID, worker: str, capabilities: Collection[str], lease_ttl: timedelta | None
    ) -> Lease:
        """This very execution."""
        execution = self._world.find(namespace, id)
        if execution.state is not State.WAITING:
            raise refused(execution, "execution_not_leaseable")
        if self._world.lane(namespace, execution.lane) is LaneState.PAUSED:
            raise refused(execution, "lane_paused")
        check_capabilities(execution, capabilities)
        return self._begin(execution, worker, lease_ttl)

    def claim_resumed(
        self, namespace: str, *, id: UUID, worker: str, capabilities: Collection[str], lease_ttl: timedelta | None
    ) -> Lease:
        """The same, only to go on with an interrupted attempt."""
        execution = self._world.find(namespace, id)
        if execution.attempt_state is not AttemptState.INTERRUPTED:
            raise refused(execution, "not_a_resumed_execution")
        return self.claim_execution(namespace, id=id, worker=worker, capabilities=capabilities, lease_ttl=lease_ttl)

    def held(self, namespace: str, *, instance: str) -> list[Lease]:
        """Live leases of an instance."""
        found = [item for item in self._world.executions.values() if item.namespace == namespace and item.lease]
        mine = [
            item
            for item in found
            if item.lease and item.lease.worker.instance == instance and item.lease.expires_at > self._world.now
        ]
        return [
            lease_of(item) for item in sorted(mine, key=lambda item: (item.lease and item.lease.acquired_at, item.id))
        ]

    def reclaim(self, namespace: str, *, grant: UUID, worker: str, lease_ttl: timedelta | None) -> Lease | Ended:
        """The granted worker takes over what was kept for a hand-off, as a new attempt; a repeat answers alike."""
        world, given = self._world, self._world.grants.get(grant)
        execution = world.executions.get(given.execution_id) if given else None
        if given is None or execution is None or execution.namespace != namespace:
            raise NotFound("grant_not_found", "")
        if given.worker != WorkerId(worker, worker):
            raise Refused("different_worker", "")
        if execution.lease and execution.lease.id == given.consumed_by:
            return lease_of(execution)
        if given.consumed_by == UUID(int=0):
            return Ended(State.FAILED)
        if execution.ownership not in (KEPT_EXPIRED, KEPT_REVOKED):
            raise refused(execution, "execution_not_reclaimable")
        if given.consumed_by is not None:
            raise refused(execution, "grant_already_consumed")
        if given.expires_at <= world.now:
            raise refused(execution, "grant_expired")
        counts = execution.ownership == KEPT_EXPIRED
        if counts and execution.reclaims >= execution.policy.max_reclaims:
            world.grants[grant] = replace(given, consumed_by=UUID(int=0))
            world.exhaust(execution)
            return Ended(State.FAILED)
        before = replace(execution)
        world.end_attempt(execution, AttemptOutcome.RECLAIMED)
        world.open_attempt(execution, "reclaimed")
        execution.reclaims += counts
        lease = world.begin_lease(execution, worker, lease_ttl)
        world.grants[grant] = replace(given, consumed_by=lease.fence.lease_id)
        world.note(execution, "lease.reclaimed", before)
        return lease

    def renew(self, namespace: str, *, fence: Fence) -> Renewed:
        """By its own term from now, never shorter than it was."""
        lease = self._world.owned(namespace, fence).lease
        assert lease is not None, "its fence owns it"
        lease.expires_at = max(lease.expires_at, self._world.now + lease.ttl)
        return Renewed(lease.expires_at)

    def renew_many(self, namespace: str, *, fences: Sequence[Fence]) -> list[Any]:
        """Each for itself."""
        return [answer_or_refusal(self.renew, namespace, fence=fence) for fence in fences]

    def complete_many(self, namespace: str, *, results: Sequence[tuple[Fence, bytes]]) -> list[Any]:
        """Each for itself, in their order."""
        complete = partial(answer_or_refusal, self.complete, namespace, steps=[])
        return [complete(fence=fence, result=result) for fence, result in results]

    def progress(self, namespace: str, *, fence: Fence, percent: int | None, message: str | None) -> None:
        """What is absent keeps its last value."""
        execution = self._world.owned(namespace, fence)
        execution.percent = execution.percent if percent is None else percent
        execution.message = execution.message if message is None else message

    def checkpoint(self, namespace: str, *, fence: Fence, steps: list[Step]) -> int:
        """Records step results."""
        self._world.record(self._world.owned(namespace, fence), steps)
        return len(steps)

    def complete(self, namespace: str, *, fence: Fence, result: bytes, steps: list[Step]) -> Ended:
        """Ends well; the epoch stays."""

        def end(execution: Execution, request: tuple[Any, ...]) -> Ended:
            before, answer = replace(execution), Ended(State.COMPLETED)
            self._world.end_attempt(execution, AttemptOutcome.SUCCESS, result)
            self._world.end_lease(execution, "execution_not_active", moves=False, request=request, answer=answer)
            self._world.terminate(execution, State.COMPLETED)
            self._world.note(execution, "completion.completed", before)
            return answer

        return self._give_up(namespace, fence, ("complete", result), steps, end)

    def fail(
        self, namespace: str, *, fence: Fence, message: str, failure_class: FailureClass, category: str | None,
        steps: list[Step],
    ) -> RetryScheduled | Ended:  # fmt: skip
        """The stored policy decides whether there is another try."""
        word = category or failure_class.value

        def end(execution: Execution, request: tuple[Any, ...]) -> RetryScheduled | Ended:
            retried = may_retry(execution, failure_class, word)
            at = self._world.fail_attempt(execution, word, retried=retried, moves=False, request=request)
            answer = Ended(State.FAILED) if at is None else RetryScheduled(at)
            assert execution.former is not None, "it has just given up its lease"
            execution.former.answer = answer
            return answer

        return self._give_up(namespace, fence, ("fail", message, failure_class, word), steps, end)

    def delay(self, namespace: str, *, fence: Fence, after: timedelta, steps: list[Step]) -> Delayed | Released:
        """The same attempt goes on later."""
        return self._pause(namespace, fence, ("delay", after), steps)

    def suspend(
        self, namespace: str, *, fence: Fence, steps: list[Step], **wish: Any
    ) -> Suspended | Satisfied:  # fmt: skip
        """The same attempt goes on when a condition holds."""
        return suspend(self._world, namespace, fence, Wish(**wish), steps)

    def release(self, namespace: str, *, fence: Fence) -> Delayed | Released:
        """The same attempt goes on as soon as a worker takes it."""
        return self._pause(namespace, fence, ("release",), [])

    def cancel(self, namespace: str, *, fence: Fence, reason: str, steps: list[Step]) -> Ended:
        """The worker cancels what it works on."""

        def end(execution: Execution, request: tuple[Any, ...]) -> Ended:
            principal = execution.lease.worker.instance if execution.lease else ""
            return self._world.cancel(execution, "lease_holder", principal, reason, request)

        return self._give_up(namespace, fence, ("cancel", reason), steps, end)

    def _begin(self, execution: Execution, worker: str, ttl: timedelta | None) -> Lease:
        before = replace(execution)
        lease = self._world.begin_lease(execution, worker, ttl)
        self._world.note(execution, "lease.acquired", before)
        return lease

    def _pause(self, namespace: str, fence: Fence, what: tuple[Any, ...], steps: list[Step]) -> Delayed | Released:
        def end(execution: Execution, request: tuple[Any, ...]) -> Delayed | Released:
            before, now = replace(execution), self._world.now
            until = now + what[1] if what[0] == "delay" else None
            answer = Delayed(until) if until else Released()
            self._world.end_lease(execution, "execution_not_active", request=request, answer=answer)
            execution.attempt_state = AttemptState.INTERRUPTED
            later = until is not None and until > now
            execution.state, execution.ready_at = (State.DELAYED, until) if later else (State.WAITING, None)
            self._world.note(execution, "lease.delayed" if later else "lease.released", before)
            return answer

        return self._give_up(namespace, fence, what, steps, end)

    def _give_up(
        self, namespace: str, fence: Fence, what: tuple[Any, ...], steps: list[Step],
        end: Callable[[Execution, tuple[Any, ...]], Answer],
    ) -> Answer:  # fmt: skip
        """The same request again is answered as the first was; other content is refused. The steps go with it."""
        request = (*what, *((step.name, step.status, step.payload) for step in steps))
        former = self._world.find(namespace, fence.execution_id).former
        if former and former.fence == fence and former.request == request:
            first: Answer = former.answer
            return first
        execution = self._world.owned(namespace, fence)
        self._world.record(execution, steps)
        return end(execution, request)


def _turn(execution: Execution) -> tuple[int, bool, datetime, UUID]:
    new = execution.attempt_state is not AttemptState.INTERRUPTED
    return -execution.priority, new, execution.created_at, execution.id
