"""The reference model of `engine.operator`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from flowfabric.engine import (
    AlreadySatisfied,
    AttemptState,
    Ended,
    Grant,
    Held,
    NotFound,
    PriorityChanged,
    Replayed,
    Resumed,
    Revoked,
    State,
    Unheld,
    WorkerId,
)
from tests.model.records import KEPT_EXPIRED, KEPT_REVOKED, Execution
from tests.model.signals_model import override
from tests.model.world import World, check_capabilities, find_step, make_refusal, seconds

OPERATOR = "operator"
GRANT_TTL = timedelta(seconds=60)


class Operator:
    """The calls of an operator, each of which writes an event with principal and reason."""

    def __init__(self, world: World) -> None:
        self._world = world

    def cancel(self, namespace: str, *, id: UUID, reason: str) -> Ended:
        """Cancel an execution.

        A repeated cancel returns the same outcome. If the execution has ended in another way, the cancel is rejected.
        """
        execution = self._world.find(namespace, id)
        if execution.state is State.CANCELLED:
            return Ended(State.CANCELLED)
        if execution.state.is_terminal:
            raise make_refusal(execution, "execution_not_active")
        return self._world.cancel(execution, "operator_override", OPERATOR, reason)

    def revoke_lease(
        self, namespace: str, *, id: UUID, reason: str, instance: str | None, lease_id: UUID | None, epoch: int | None
    ) -> Revoked | AlreadySatisfied:
        """Revoke the live lease if it matches the arguments.

        If it does not match, return an outcome and raise no error.
        """
        execution = self._world.find(namespace, id)
        lease = execution.lease
        if lease is None:
            reasons = {KEPT_EXPIRED: "already_expired", KEPT_REVOKED: "already_revoked"}
            return AlreadySatisfied(reasons.get(execution.ownership or "", "no_active_lease"))
        if epoch is not None and epoch != execution.epoch:
            return AlreadySatisfied("epoch_moved")
        if instance is not None and instance != lease.worker.instance:
            return AlreadySatisfied("different_worker_instance")
        if lease_id is not None and lease_id != lease.id:
            return AlreadySatisfied("different_lease")
        if lease.expires_at <= self._world.now:
            return AlreadySatisfied("already_expired")
        self._world.lose_lease(execution, "lease.revoked", OPERATOR, reason)
        return Revoked(lease.id, execution.epoch)

    def grant_reclaim(self, namespace: str, *, id: UUID, worker: str, capabilities: Collection[str]) -> Grant:
        """Allow one worker at a time to take over an execution kept for hand-off."""
        world, execution = self._world, self._world.find(namespace, id)
        if execution.ownership not in (KEPT_EXPIRED, KEPT_REVOKED):
            raise make_refusal(execution, "execution_not_reclaimable")
        check_capabilities(execution, capabilities)
        for grant in world.grants.values():
            if grant.execution_id == id and grant.consumed_by is None and grant.expires_at > world.now:
                if grant.worker != WorkerId(worker, worker):
                    raise make_refusal(execution, "grant_already_exists")
                return grant
        grant = Grant(
            id=world.mint(),
            execution_id=id,
            worker=WorkerId(worker, worker),
            granted_at=world.now,
            expires_at=world.now + GRANT_TTL,
        )
        world.grants[grant.id] = grant
        execution.is_standalone = False
        world.note(execution, "operator.reclaim_granted", replace(execution), OPERATOR, "")
        return grant

    def change_priority(self, namespace: str, *, id: UUID, priority: int, reason: str) -> PriorityChanged:
        """Change the priority of a waiting execution."""
        execution = self._world.find(namespace, id)
        if execution.state is not State.WAITING:
            raise make_refusal(execution, "execution_not_eligible")
        outcome = PriorityChanged(execution.priority, min(max(priority, 0), 9000))
        if outcome.old != outcome.new:
            execution.priority = outcome.new
            self._world.note(execution, "operator.priority_changed", replace(execution), OPERATOR, reason)
        return outcome

    def resume(
        self, namespace: str, *, id: UUID, reason: str, suspension: UUID | None, delay: timedelta | None
    ) -> Resumed | AlreadySatisfied:
        """End the current wait."""
        return override(self._world, self._world.find(namespace, id), suspension, delay, reason)

    def hold(self, namespace: str, *, id: UUID, reason: str) -> Held:
        """Hold a waiting or delayed execution. It becomes blocked and keeps its ready time."""
        execution = self._world.find(namespace, id)
        if execution.state is State.BLOCKED:
            return Held(execution.hold_reason or "")
        if execution.state not in (State.WAITING, State.DELAYED):
            raise make_refusal(execution, "execution_not_eligible")
        execution.state, execution.hold_reason = State.BLOCKED, reason
        self._world.note(execution, "operator.held", replace(execution), OPERATOR, reason)
        return Held(reason)

    def unhold(self, namespace: str, *, id: UUID, reason: str) -> Unheld | AlreadySatisfied:
        """Return a held execution to waiting or delayed."""
        execution = self._world.find(namespace, id)
        if execution.state in (State.WAITING, State.DELAYED):
            return AlreadySatisfied("not_held")
        if execution.state is not State.BLOCKED:
            raise make_refusal(execution, "execution_not_eligible")
        is_delayed = execution.ready_at is not None and execution.ready_at > self._world.now
        execution.state, execution.hold_reason = State.DELAYED if is_delayed else State.WAITING, None
        execution.ready_at = execution.ready_at if is_delayed else None
        self._world.note(execution, "operator.unheld", replace(execution), OPERATOR, reason)
        return Unheld(execution.state)

    def unhold_all(self, namespace: str, *, kind: str | None, hold_reason: str | None, reason: str) -> int:
        """Unhold all held executions, or only those with the given kind or hold reason."""
        held = [
            execution
            for execution in self._world.executions.values()
            if execution.state is State.BLOCKED
            and execution.namespace == namespace
            and kind in (None, execution.kind)
            and hold_reason in (None, execution.hold_reason)
        ]
        for execution in held:
            self.unhold(namespace, id=execution.id, reason=reason)
        return len(held)

    def replay(
        self, namespace: str, *, id: UUID, reason: str, from_step: str | None, expected_generation: int | None
    ) -> Replayed:
        """Run a terminal execution again as a new generation. Steps recorded before the named step stay valid."""
        execution = self._world.find(namespace, id)
        if expected_generation is not None and expected_generation == execution.generation - 1:
            return Replayed(execution.generation, execution.vector.public_state)
        if expected_generation is not None and expected_generation != execution.generation:
            raise make_refusal(execution, "generation_moved")
        if not execution.state.is_terminal:
            raise make_refusal(execution, "execution_not_terminal")
        if execution.replays >= execution.policy.max_replays:
            raise make_refusal(execution, "max_replays_exhausted")
        first_struck = find_step(execution, from_step) if from_step else None
        if from_step and first_struck is None:
            raise NotFound("step_not_found", "")
        is_kept = first_struck is not None
        for step in execution.steps:
            is_kept = is_kept and step is not first_struck
            if not is_kept and step.struck_by is None:
                step.struck_by = execution.generation + 1
        self._world.end_grants(id)
        self._world.open_attempt(execution, "replayed")
        self._begin_generation(execution)
        self._world.declare(execution)
        self._world.note(execution, "operator.replayed", replace(execution), OPERATOR, reason)
        return Replayed(execution.generation, execution.vector.public_state)

    def _begin_generation(self, execution: Execution) -> None:
        relative = execution.policy.deadline
        execution.deadline_at = None if relative is None else self._world.now + seconds(relative)
        execution.generation += 1
        execution.epoch += 1
        execution.replays += 1
        execution.retries = execution.reclaims = 0
        execution.percent = execution.message = execution.category = execution.resumption = None
        execution.cancelled_by = execution.cancel_reason = execution.ended_at = execution.purge_at = None
        execution.state, execution.attempt_state = State.WAITING, AttemptState.PENDING_REPLAY
