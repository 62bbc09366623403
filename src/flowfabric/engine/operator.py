"""`engine.operator`: what a person or a supervisor does to executions. Each action says who and why in its event."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from uuid import UUID

from flowfabric.core import limits, requests
from flowfabric.core.explaining import Explanation
from flowfabric.core.flow_outcomes import CancelRequested
from flowfabric.core.ids import parse_id
from flowfabric.core.outcomes import (
    AlreadySatisfied,
    Ended,
    Held,
    PriorityChanged,
    Replayed,
    Resumed,
    Revoked,
    Unheld,
)
from flowfabric.core.records import Grant, WorkerId
from flowfabric.core.requests import GrantTerms, Holds, ReplayFrom, WhichLease
from flowfabric.engine.context import Context, command
from flowfabric.ops.cancel import ask_next, cancel
from flowfabric.ops.change_priority import change_priority
from flowfabric.ops.explain import explain
from flowfabric.ops.families import CancelOrder
from flowfabric.ops.grant_reclaim import grant_reclaim
from flowfabric.ops.hold import hold, unhold, unhold_next
from flowfabric.ops.replay import replay
from flowfabric.ops.resume import resume
from flowfabric.ops.revoke_lease import revoke_lease

OPERATOR = "operator"
OVERRIDE = "operator_override"
_FIRST_ID = UUID(int=0)


class Operator:
    """Cancels, revokes, hands off, holds, reprioritises and replays executions."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def cancel(
        self, id: UUID | str, reason: str = "", *, children: bool = False, grace: limits.Duration | None = None,
        source: str = OVERRIDE, principal: str = OPERATOR,
    ) -> Ended | CancelRequested:  # fmt: skip
        """Ends the execution as cancelled, whoever works on it, with its children if asked; repeated, it answers the
        same. With `grace` its worker is told first, at its next renewal, and has that long to clean up; a suspended
        execution goes on for it."""
        found = parse_id(id)
        order = CancelOrder(
            command=command(principal, reason), source=limits.name(source, "source"),
            children=limits.truth(children, "children"),
            grace=None if grace is None else limits.duration(grace, "grace"),
        )  # fmt: skip
        namespace = self._context.namespace
        answer, last = await self._context.store.run(lambda tx: cancel(tx, namespace, found, order))
        while last is not None:
            body = partial(ask_next, namespace=namespace, id_=found, order=order, after=last)
            last = await self._context.store.run(body)
        self._context.due_at(answer.due_at if isinstance(answer, CancelRequested) else None)
        return answer

    async def revoke_lease(
        self, id: UUID | str, reason: str = "", *, instance: str | None = None, lease_id: UUID | str | None = None,
        epoch: int | None = None, principal: str = OPERATOR,
    ) -> Revoked | AlreadySatisfied:  # fmt: skip
        """Takes the live lease away, or only that of an instance, id or epoch; says if there was nothing to do."""
        found, who = parse_id(id), command(principal, reason)
        which = WhichLease(
            instance=None if instance is None else limits.name(instance, "instance"),
            lease_id=None if lease_id is None else parse_id(lease_id, "lease_id"),
            epoch=None if epoch is None else limits.whole(epoch, "epoch", 0, 2**63 - 1),
        )
        return await self._context.store.run(lambda tx: revoke_lease(tx, self._context.namespace, found, which, who))

    async def grant_reclaim(
        self, id: UUID | str, worker: WorkerId | str, reason: str = "", *, capabilities: Collection[str] = (),
        ttl: limits.Duration = 60, principal: str = OPERATOR,
    ) -> Grant:  # fmt: skip
        """The right of this worker to take over an execution that its policy keeps for a hand-off."""
        found, who = parse_id(id), requests.worker(worker)
        offered = limits.capabilities(capabilities, "capabilities")
        span = limits.duration(ttl, "ttl", limits.LEASE_TTL_LEAST, limits.LEASE_TTL_MOST)
        terms = GrantTerms(
            command=command(principal, reason), grant_id=self._context.ids.mint(), worker=who, capabilities=offered,
            ttl=span,
        )  # fmt: skip
        return await self._context.store.run(lambda tx: grant_reclaim(tx, self._context.namespace, found, terms))

    async def change_priority(
        self, id: UUID | str, priority: int, reason: str = "", *, principal: str = OPERATOR
    ) -> PriorityChanged:  # fmt: skip
        """Moves waiting work to another priority, clamped to 0..9000."""
        found, new, who = parse_id(id), limits.priority(priority), command(principal, reason)
        return await self._context.store.run(lambda tx: change_priority(tx, self._context.namespace, found, new, who))

    async def resume(
        self, id: UUID | str, reason: str = "", *, suspension: UUID | str | None = None,
        delay: limits.Duration | None = None, principal: str = OPERATOR,
    ) -> Resumed | AlreadySatisfied:  # fmt: skip
        """Ends the wait of a suspended execution, whatever it waits for. With the `suspension` that was seen, repeating
        it is harmless: if that one is closed, there is nothing to do."""
        found, who = parse_id(id), command(principal, reason)
        which = None if suspension is None else parse_id(suspension, "suspension")
        span = None if delay is None else limits.duration(delay, "delay")
        answer = await self._context.store.run(lambda tx: resume(tx, self._context.namespace, found, which, span, who))
        self._context.due_at(None)
        return answer

    async def explain(self, id: UUID | str) -> Explanation:
        """Why the execution is not running, in one sentence with the facts."""
        found = parse_id(id)
        return await self._context.store.read(lambda tx: explain(tx, self._context.namespace, found))

    async def hold(self, id: UUID | str, reason: str = "", *, principal: str = OPERATOR) -> Held:
        """Stops waiting or delayed work until it is unheld."""
        found, who = parse_id(id), command(principal, reason)
        return await self._context.store.run(lambda tx: hold(tx, self._context.namespace, found, who))

    async def unhold(
        self, id: UUID | str, reason: str = "", *, principal: str = OPERATOR
    ) -> Unheld | AlreadySatisfied:  # fmt: skip
        """Lets held work go on, at the time that was kept."""
        found, who = parse_id(id), command(principal, reason)
        answer = await self._context.store.run(lambda tx: unhold(tx, self._context.namespace, found, who))
        self._context.due_at(None)
        return answer

    async def unhold_all(
        self, *, kind: str | None = None, held_for: str | None = None, reason: str = "", principal: str = OPERATOR
    ) -> int:
        """Lets everything go on that is held, or only one kind or what was held for one reason; answers how many."""
        who = command(principal, reason)
        holds = Holds(
            kind=None if kind is None else limits.name(kind, "kind"),
            reason=None if held_for is None else limits.text(held_for, "held_for"),
        )
        total, after = 0, _FIRST_ID
        while True:
            body = partial(unhold_next, namespace=self._context.namespace, holds=holds, after=after, command=who)
            done, last = await self._context.store.run(body)
            total += done
            if last is None:
                break
            after = last
        self._context.due_at(None)
        return total

    async def replay(
        self, id: UUID | str, reason: str = "", *, from_step: str | None = None,
        expected_generation: int | None = None, principal: str = OPERATOR,
    ) -> Replayed:  # fmt: skip
        """Runs a terminal execution again, from its start or from a recorded step.

        Pass the generation you saw to make repeating the call after a lost reply harmless.
        """
        found, who = parse_id(id), command(principal, reason)
        which = ReplayFrom(
            step=None if from_step is None else limits.name(from_step, "from_step"),
            generation=None
            if expected_generation is None
            else limits.whole(expected_generation, "expected_generation", 0, 2**31),
        )
        answer = await self._context.store.run(lambda tx: replay(tx, self._context.namespace, found, which, who))
        self._context.due_at(None)
        return answer
