"""`engine.operator`: actions of people and supervisors.

Each action appends an event that records who acted (the principal) and why (the reason).
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from flowfabric.core import validation
from flowfabric.core.executions import requests
from flowfabric.core.executions.explain import Explanation
from flowfabric.core.executions.outcomes import (
    AlreadySatisfied,
    Ended,
    Held,
    PriorityChanged,
    Replayed,
    Resumed,
    Revoked,
    Unheld,
)
from flowfabric.core.executions.records import Grant, WorkerId
from flowfabric.core.executions.requests import GrantTerms, HoldFilter, LeaseFilter, ReplayFrom
from flowfabric.core.flows.outcomes import CancelPending
from flowfabric.core.ids import parse_id
from flowfabric.engine.context import Context, audit_info
from flowfabric.ops.executions.update import PriorityChange, change_priority
from flowfabric.ops.flows.descendants import CancelCommand
from flowfabric.ops.leases.reclaim import GrantRequest, RevokeRequest, grant_reclaim, revoke_lease
from flowfabric.ops.operator.cancel import CancelTarget, cancel, request_cancel_next
from flowfabric.ops.operator.explain import explain
from flowfabric.ops.operator.hold import OperatorRequest, UnholdBatch, hold, unhold, unhold_next
from flowfabric.ops.operator.replay import ReplayRequest, replay
from flowfabric.ops.waits.resume import ResumeRequest, resume

OPERATOR = "operator"
OVERRIDE = "operator_override"
_FIRST_ID = UUID(int=0)


class Operator:
    """Cancels, holds, reprioritizes, resumes, explains and replays executions, and takes away leases."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def cancel(
        self,
        id: UUID | str,
        reason: str = "",
        *,
        children: bool = False,
        grace: validation.Duration | None = None,
        source: str = OVERRIDE,
        principal: str = OPERATOR,
    ) -> Ended | CancelPending:
        """Cancel the execution, even while a worker runs it. With `children`, also cancel all of its descendants.

        A repeated call returns the same outcome. With `grace`, the worker is asked to stop when it next renews the
        lease, and then has this much time to clean up. A suspended execution resumes, so that it can clean up.
        """
        id_ = parse_id(id)
        command = CancelCommand(
            audit=audit_info(principal, reason),
            source=validation.name(source, "source"),
            children=validation.boolean(children, "children"),
            grace=None if grace is None else validation.duration(grace, "grace"),
        )
        outcome, last = await self._context.call(cancel, CancelTarget(id_, command))
        while last is not None:
            last = await self._context.call(request_cancel_next, CancelTarget(id_, command, last))
        self._context.due_at(outcome.due_at if isinstance(outcome, CancelPending) else None)
        return outcome

    async def revoke_lease(
        self,
        id: UUID | str,
        reason: str = "",
        *,
        instance: str | None = None,
        lease_id: UUID | str | None = None,
        epoch: int | None = None,
        principal: str = OPERATOR,
    ) -> Revoked | AlreadySatisfied:
        """Revoke the live lease of an execution, if it has the given instance, id and epoch.

        If no lease matches, return `AlreadySatisfied`.
        """
        which = LeaseFilter(
            instance=None if instance is None else validation.name(instance, "instance"),
            lease_id=None if lease_id is None else parse_id(lease_id, "lease_id"),
            epoch=None if epoch is None else validation.integer(epoch, "epoch", 0, 2**63 - 1),
        )
        request = RevokeRequest(parse_id(id), which, audit_info(principal, reason))
        return await self._context.call(revoke_lease, request)

    async def grant_reclaim(
        self,
        id: UUID | str,
        worker: WorkerId | str,
        reason: str = "",
        *,
        capabilities: Collection[str] = (),
        ttl: validation.Duration = 60,
        principal: str = OPERATOR,
    ) -> Grant:
        """Allow `worker` to take over an execution that lost its lease, and return the grant.

        The execution must be one that its policy keeps for a hand-off (`on_lease_loss`).
        """
        terms = GrantTerms(
            command=audit_info(principal, reason),
            grant_id=self._context.ids.mint(),
            worker=requests.parse_worker(worker),
            capabilities=validation.capabilities(capabilities, "capabilities"),
            ttl=validation.duration(ttl, "ttl", validation.MIN_LEASE_TTL, validation.MAX_LEASE_TTL),
        )
        return await self._context.call(grant_reclaim, GrantRequest(parse_id(id), terms))

    async def change_priority(
        self, id: UUID | str, priority: int, reason: str = "", *, principal: str = OPERATOR
    ) -> PriorityChanged:
        """Change the priority of an execution that is waiting for a worker.

        A value outside 0..9000 becomes the nearest limit.
        """
        change = PriorityChange(parse_id(id), validation.priority(priority), audit_info(principal, reason))
        return await self._context.call(change_priority, change)

    async def resume(
        self,
        id: UUID | str,
        reason: str = "",
        *,
        suspension: UUID | str | None = None,
        delay: validation.Duration | None = None,
        principal: str = OPERATOR,
    ) -> Resumed | AlreadySatisfied:
        """End the wait of a suspended execution, although the condition of the wait is not satisfied.

        With the id of the `suspension`, the call can be repeated safely: if that suspension is closed, nothing happens.
        """
        request = ResumeRequest(
            execution_id=parse_id(id),
            suspension_id=None if suspension is None else parse_id(suspension, "suspension"),
            delay=None if delay is None else validation.duration(delay, "delay"),
            audit=audit_info(principal, reason),
        )
        outcome = await self._context.call(resume, request)
        self._context.due_at(None)
        return outcome

    async def explain(self, id: UUID | str) -> Explanation:
        """Return one sentence that explains why the execution is not running, and the facts behind it."""
        return await self._context.call(explain, parse_id(id))

    async def hold(self, id: UUID | str, reason: str = "", *, principal: str = OPERATOR) -> Held:
        """Hold a waiting or delayed execution until an operator unholds it."""
        return await self._context.call(hold, OperatorRequest(parse_id(id), audit_info(principal, reason)))

    async def unhold(self, id: UUID | str, reason: str = "", *, principal: str = OPERATOR) -> Unheld | AlreadySatisfied:
        """Let a held execution continue. If its start time is in the future, it starts at that time."""
        outcome = await self._context.call(unhold, OperatorRequest(parse_id(id), audit_info(principal, reason)))
        self._context.due_at(None)
        return outcome

    async def unhold_all(
        self, *, kind: str | None = None, hold_reason: str | None = None, reason: str = "", principal: str = OPERATOR
    ) -> int:
        """Unhold all held executions, or only those of one kind or hold reason, and return how many."""
        audit = audit_info(principal, reason)
        holds = HoldFilter(
            kind=None if kind is None else validation.name(kind, "kind"),
            reason=None if hold_reason is None else validation.text(hold_reason, "hold_reason"),
        )
        total, after = 0, _FIRST_ID
        while True:
            done, last = await self._context.call(unhold_next, UnholdBatch(holds, after, audit))
            total += done
            if last is None:
                break
            after = last
        self._context.due_at(None)
        return total

    async def replay(
        self,
        id: UUID | str,
        reason: str = "",
        *,
        from_step: str | None = None,
        expected_generation: int | None = None,
        downstream: bool = True,
        principal: str = OPERATOR,
    ) -> Replayed:
        """Run a terminal execution again, from its start or from a recorded step, which is performed again.

        If it is a member of a flow, the members that were skipped because of it are brought back in the same
        transaction. With `downstream=False` they stay skipped. With `expected_generation`, the call can be repeated
        safely after a lost reply.
        """
        start = ReplayFrom(
            step=None if from_step is None else validation.name(from_step, "from_step"),
            generation=None
            if expected_generation is None
            else validation.integer(expected_generation, "expected_generation", 0, 2**31),
        )
        is_downstream = validation.boolean(downstream, "downstream")
        request = ReplayRequest(parse_id(id), start, audit_info(principal, reason), is_downstream)
        outcome = await self._context.call(replay, request)
        self._context.due_at(None)
        return outcome
