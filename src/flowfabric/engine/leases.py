"""`engine.leases`: what a worker does. Every write presents the fence of its lease."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from flowfabric.batching import run_batch
from flowfabric.core import limits, requests
from flowfabric.core.bindings import Bound
from flowfabric.core.conditions import Condition
from flowfabric.core.errors import FlowFabricError, InvalidRequest
from flowfabric.core.flow_outcomes import ChildrenReady, WaitingForChildren
from flowfabric.core.graph import ALL_OF, ChildSubmission, EdgeKind, Join
from flowfabric.core.ids import parse_id
from flowfabric.core.outcomes import (
    Delayed,
    Ended,
    Released,
    Renewed,
    RetryScheduled,
    Satisfied,
    Submitted,
    Suspended,
)
from flowfabric.core.records import Fence
from flowfabric.core.requests import Checkpoint, Completion, OwnCancel, Pause, Progress, Step
from flowfabric.core.retry import FailureClass
from flowfabric.core.waits import OnTimeout, Rest, SuspensionReason
from flowfabric.engine.children import children, wait_request
from flowfabric.engine.context import command
from flowfabric.engine.durable import DurableLeases
from flowfabric.engine.operator import OPERATOR, OVERRIDE
from flowfabric.engine.routes import known_route_ids, remember_routes
from flowfabric.engine.suspending import suspend_request
from flowfabric.ops.cancel import cancel_own
from flowfabric.ops.cancel_children import CancelChildren, cancel_children
from flowfabric.ops.checkpoint import CHECKPOINT
from flowfabric.ops.complete import COMPLETE, COMPLETE_LINKED
from flowfabric.ops.delay import delay
from flowfabric.ops.fail import fail
from flowfabric.ops.families import CancelOrder
from flowfabric.ops.progress import PROGRESS
from flowfabric.ops.submit_children import SubmitChildren, submit_children
from flowfabric.ops.wait_children import wait_children


class Leases(DurableLeases):
    """Claims work, keeps and ends leases, and records what the attempt does."""

    async def renew(self, fence: Fence) -> Renewed:
        """Extends the lease by its own term from now. One that has run out stays lost."""
        return await self._context.one(self._context.renew, requests.fence(fence))

    async def renew_many(self, fences: Sequence[Fence]) -> list[Renewed | FlowFabricError]:
        """Extends many leases; each is answered for itself."""
        items = [requests.fence(item) for item in limits.batch(fences, "fences")]
        return await run_batch(self._context.store, self._context.namespace, self._context.renew, items)

    async def progress(self, fence: Fence, percent: int | None = None, message: str | None = None) -> None:
        """Stores how far the attempt is; what is absent keeps its last value."""
        report = Progress(
            fence=requests.fence(fence),
            percent=None if percent is None else limits.whole(percent, "percent", 0, 100),
            message=None if message is None else limits.text(message, "message"),
        )
        await self._context.one(PROGRESS, report)

    async def checkpoint(self, fence: Fence, steps: Sequence[Step]) -> int:
        """Records step results; answers how many. A final step may be repeated, not changed."""
        return await self.checkpointing(fence, steps)

    def checkpointing(self, fence: Fence, steps: Sequence[Step]) -> asyncio.Future[int]:
        """The same, begun at once: its answer to come."""
        item = Checkpoint(fence=requests.fence(fence), steps=requests.steps(steps))
        if not item.steps:
            raise InvalidRequest("invalid_request", "a checkpoint needs at least one step", field="steps")
        return self._context.begun(CHECKPOINT, item)

    async def complete(
        self, fence: Fence, result: bytes = b"", *, encoding: str = "json", steps: Sequence[Step] = ()
    ) -> Ended:
        """Ends the execution well, with its result and the steps that are still to be recorded."""
        item = _completion(fence, result, encoding, steps)
        is_linked = item.fence.lease_id in self._context.linked
        self._context.linked.discard(item.fence.lease_id)
        return await self._context.one(COMPLETE_LINKED if is_linked else COMPLETE, item)

    async def complete_many(
        self, results: Sequence[tuple[Fence, bytes]], *, encoding: str = "json"
    ) -> list[Ended | FlowFabricError]:
        """Ends many executions well; each is answered for itself."""
        label = limits.name(encoding, "encoding")
        items = [_completion(*_pair(item), label, ()) for item in limits.batch(results, "results")]
        return await run_batch(self._context.store, self._context.namespace, COMPLETE, items)

    async def fail(
        self, fence: Fence, message: str, *, failure_class: FailureClass | str = FailureClass.TRANSIENT,
        category: str | None = None, detail: bytes | None = None, steps: Sequence[Step] = (),
    ) -> RetryScheduled | Ended:  # fmt: skip
        """Ends the attempt badly; the stored policy decides whether there is another, and when."""
        kind = requests.choice(FailureClass, failure_class, "failure_class")
        report = requests.FailureReport(
            fence=requests.fence(fence), message=limits.text(message, "message"), failure_class=kind,
            category=limits.name(kind.value if category is None else category, "category"),
            chance=self._context.chance(), steps=requests.steps(steps),
            detail=None if detail is None else limits.payload(detail, "detail"),
        )  # fmt: skip
        answer = await self._context.store.run(lambda tx: fail(tx, self._context.namespace, report))
        if isinstance(answer, RetryScheduled):
            self._context.due_at(answer.at)
        return answer

    async def delay(
        self,
        fence: Fence,
        *,
        until: datetime | None = None,
        after: limits.Duration | None = None,
        steps: Sequence[Step] = (),
    ) -> Delayed:
        """Gives up the lease; the same attempt goes on at that time, or after that long."""
        if (until is None) == (after is None):
            raise InvalidRequest("invalid_request", "give until or after, one of the two")
        pause = Pause(
            fence=requests.fence(fence), until=None if until is None else limits.moment(until, "until"),
            after=None if after is None else limits.duration(after, "after"), steps=requests.steps(steps),
        )  # fmt: skip
        answer = await self._context.store.run(lambda tx: delay(tx, self._context.namespace, pause))
        assert isinstance(answer, Delayed), "a pause with a time is a delay"
        self._context.due_at(answer.until)
        return answer

    async def suspend(
        self, fence: Fence, waitpoints: Sequence[Bound | str], condition: Condition | None = None, *,
        reason: SuspensionReason | str = SuspensionReason.WAITING_FOR_SIGNAL, timeout: limits.Duration | None = None,  # noqa: ASYNC109 - the suspension's
        timeout_at: datetime | None = None, on_timeout: OnTimeout | str = OnTimeout.FAIL,
        resume_delay: limits.Duration = 0, rest: Rest | str = Rest.CLOSE, key: str | None = None,
        steps: Sequence[Step] = (),
    ) -> Suspended | Satisfied:  # fmt: skip
        """Gives up the lease until signals at these waitpoints satisfy the condition: any signal at all of them, unless
        told. If they do already, the lease is kept. With a `key`, repeating it is harmless in every later attempt."""
        request = suspend_request(
            self._context, fence, waitpoints, condition, timeout, timeout_at,
            reason=reason, on_timeout=on_timeout, resume_delay=resume_delay, rest=rest, key=key, steps=steps,
        )  # fmt: skip
        answer = await self._context.one(self._context.waits.suspend, request)
        if isinstance(answer, Suspended):
            self._context.linked.discard(request.fence.lease_id)
        if (due := request.first_due(self._context.wakeups.store_now())) is not None:
            self._context.due_at(due)
        return answer

    async def submit_children(
        self, fence: Fence, submissions: Sequence[ChildSubmission], *, steps: Sequence[Step] = ()
    ) -> list[Submitted]:
        """Submits executions that belong to this one, with the steps that record it, or none of them. Repeated under
        the same keys, in this or a later attempt, it answers the children that there are."""
        items = children(submissions)
        routes = known_route_ids(self._context, [item.submission for item in items])
        request = SubmitChildren(
            fence=requests.fence(fence), children=tuple(zip(items, routes, strict=True)), steps=requests.steps(steps)
        )
        answers, made = await self._context.store.run(lambda tx: submit_children(tx, self._context.namespace, request))
        remember_routes(self._context, made)
        if not all(item.detached for item in items):
            self._context.linked.add(request.fence.lease_id)
        self._context.due_at(None)
        return answers

    async def wait_children(
        self, fence: Fence, children: Sequence[UUID | str], *, join: Join = ALL_OF,
        edge: EdgeKind | str = EdgeKind.ON_COMPLETION, key: str | None = None, steps: Sequence[Step] = (),
    ) -> WaitingForChildren | ChildrenReady:  # fmt: skip
        """Gives up the lease until these children have ended, or as many as the join says; the same attempt goes on
        then. If they have already, the answer is how, and the lease is kept.

        `edge` says which ends count. With `on_success` the parent goes on as soon as too many children have ended
        otherwise for the join to hold: with the first failure of all, or with the first success of any, or when there
        is none.
        """
        request = wait_request(fence, children, join, key, steps, edge)
        return await self._context.store.run(lambda tx: wait_children(tx, self._context.namespace, request))

    async def cancel_children(
        self, fence: Fence, children: Sequence[UUID | str], reason: str = "", *, source: str = OVERRIDE,
        principal: str = OPERATOR,
    ) -> list[UUID]:  # fmt: skip
        """Ends children of this execution as cancelled, whoever works on them, with all that they have started; those
        that have ended stay as they are. Answers those that are not its children, which are left alone."""
        request = CancelChildren(
            fence=requests.fence(fence),
            children=tuple(parse_id(item, "children") for item in limits.batch(children, "children")),
            order=CancelOrder(command=command(principal, reason), source=limits.name(source, "source")),
        )
        strangers = await self._context.store.run(lambda tx: cancel_children(tx, self._context.namespace, request))
        self._context.due_at(None)
        return strangers

    async def release(self, fence: Fence) -> Released:
        """Gives the lease back unused or on shutdown; the same attempt goes on elsewhere, and nothing is counted."""
        pause = Pause(fence=requests.fence(fence))
        answer = await self._context.store.run(lambda tx: delay(tx, self._context.namespace, pause))
        assert isinstance(answer, Released), "a pause without a time is a release"
        return answer

    async def cancel(self, fence: Fence, reason: str = "", *, steps: Sequence[Step] = ()) -> Ended:
        """The worker cancels the execution that it works on."""
        request = OwnCancel(
            fence=requests.fence(fence), reason=limits.text(reason, "reason"), steps=requests.steps(steps)
        )
        return await self._context.store.run(lambda tx: cancel_own(tx, self._context.namespace, request))


def _completion(fence: Fence, result: bytes, encoding: str, steps: Sequence[Step]) -> Completion:
    return Completion(
        fence=requests.fence(fence),
        result=limits.payload(result, "result"),
        encoding=limits.name(encoding, "encoding"),
        steps=requests.steps(steps),
    )


def _pair(item: object) -> tuple[Fence, bytes]:
    if not isinstance(item, tuple) or len(item) != 2:
        raise InvalidRequest("invalid_type", "results must hold pairs of a fence and a result", field="results")
    return item
