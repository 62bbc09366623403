"""`engine.leases`: the calls of a worker. Each call that writes under a lease takes the lease's fence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from itertools import product
from typing import Any
from uuid import UUID

from flowfabric.core import validation
from flowfabric.core.errors import FlowFabricError, Unavailable
from flowfabric.core.executions import requests
from flowfabric.core.executions.attempts import StepRetry
from flowfabric.core.executions.outcomes import (
    Continued,
    Delayed,
    Ended,
    Held,
    Lease,
    Released,
    Renewed,
    RetryScheduled,
    Satisfied,
    Submitted,
    Suspended,
)
from flowfabric.core.executions.records import Fence, Grant, RecordedStep, WorkerId
from flowfabric.core.executions.requests import DelayRequest, LeaseTerms, Step
from flowfabric.core.executions.views import LeaseSnapshot, Page
from flowfabric.core.flows.graph import ALL_OF, ChildSubmission, EdgeKind, Join
from flowfabric.core.flows.outcomes import ChildrenReady, WaitingForChildren
from flowfabric.core.ids import parse_id
from flowfabric.core.policy import FailureClass
from flowfabric.core.waits.bindings import Bound
from flowfabric.core.waits.conditions import Condition
from flowfabric.core.waits.records import OnTimeout, SuspensionReason, UnusedWaitpoints
from flowfabric.core.waits.snapshot import JournalRequest, WaitSnapshot
from flowfabric.engine import lease_requests
from flowfabric.engine.claims import WorkWatch, claim_leases, note_times
from flowfabric.engine.context import Context
from flowfabric.engine.cursors import LAST_ID, cut_page, open_cursor, query_digest
from flowfabric.engine.lease_locks import LockListener
from flowfabric.engine.operator import OPERATOR, OVERRIDE
from flowfabric.engine.repeats import with_ids
from flowfabric.notify.waiters import Waiter, lane_topic, lease_topic
from flowfabric.ops.flows.cancel_children import cancel_children
from flowfabric.ops.flows.submit_children import submit_children
from flowfabric.ops.flows.wait_children import wait_children
from flowfabric.ops.leases.checkpoint import CHECKPOINT, Transact, transact
from flowfabric.ops.leases.claim import ClaimById, HeldQuery, claim_execution, held
from flowfabric.ops.leases.complete import COMPLETE, COMPLETE_LINKED
from flowfabric.ops.leases.postpone import postpone
from flowfabric.ops.leases.read import READ_JOURNAL, READ_WAITS, IdPage, LeaseQuery, list_expired, peek_leases
from flowfabric.ops.leases.reclaim import ReclaimRequest, reclaim
from flowfabric.ops.leases.release import continue_with, delay, fail
from flowfabric.ops.leases.renew import PROGRESS
from flowfabric.ops.leases.retry_steps import retry_steps
from flowfabric.ops.operator.cancel import cancel_own
from flowfabric.ops.operator.hold import hold_own


class Leases:
    """Claims work, renews and ends leases, and records steps."""

    def __init__(self, context: Context) -> None:
        self._context = context

    # Getting leases.

    async def claim(
        self,
        lanes: Sequence[str],
        worker: WorkerId | str,
        *,
        capabilities: Collection[str] = (),
        limit: int = 1,
        lease_ttl: validation.Duration | None = None,
        kinds: Sequence[str] | None = None,
    ) -> list[Lease]:
        """Return up to `limit` leases on waiting executions.

        Executions with the highest priority come first. At equal priority, resumed executions come before new
        executions, and older executions before younger executions. If the engine claims from several namespaces
        (`claim_namespaces` of `connect`), these take turns at equal priority. A lease has the namespace it came from.
        """
        request = lease_requests.claim_request(lanes, worker, capabilities, limit, lease_ttl, kinds)
        return await claim_leases(self._context, request)

    async def claim_execution(
        self,
        id: UUID | str,
        worker: WorkerId | str,
        *,
        capabilities: Collection[str] = (),
        lease_ttl: validation.Duration | None = None,
    ) -> Lease:
        """Return a lease on this execution, if it waits for a worker and `worker` has the required capabilities."""
        return await self._claim_by_id(id, worker, capabilities, lease_ttl, only_resumed=False)

    async def claim_resumed(
        self,
        id: UUID | str,
        worker: WorkerId | str,
        *,
        capabilities: Collection[str] = (),
        lease_ttl: validation.Duration | None = None,
    ) -> Lease:
        """Return a lease on this execution to continue an interrupted attempt.

        Raise `not_a_resumed_execution` if no attempt was interrupted, or if the execution is still suspended, delayed,
        held or waiting for children.
        """
        return await self._claim_by_id(id, worker, capabilities, lease_ttl, only_resumed=True)

    async def reclaim(
        self, grant: Grant | UUID | str, worker: WorkerId | str, *, lease_ttl: validation.Duration | None = None
    ) -> Lease | Ended:
        """Take over an execution with a grant that `operator.grant_reclaim` made for this worker.

        If the execution has no reclaims left, it fails, and the call returns `Ended`.
        """
        grant_id = parse_id(grant.id if isinstance(grant, Grant) else grant, "grant")
        requested_at = time.monotonic()
        outcome = await self._context.call(reclaim, ReclaimRequest(grant_id, self._terms(worker, lease_ttl)))
        note_times(self._context, [outcome] if isinstance(outcome, Lease) else [], requested_at)
        return outcome

    def watch(self, lanes: Sequence[str], *, capabilities: Collection[str] = ()) -> WorkWatch:
        """Return a context manager that waits for work: claim in its block, and `wait` if a claim returns no lease."""
        names, offered = validation.names(lanes, "lanes"), validation.capabilities(capabilities, "capabilities")
        wakeups = self._context.wakeups
        claimed = self._context.claim_namespaces
        namespaces = (self._context.namespace,) if claimed is None else claimed.names
        waiter = wakeups.waiter([lane_topic(lane) for lane in product(namespaces, names)], offered)
        return WorkWatch(wakeups, waiter)

    def watch_held(self, instance: str) -> Waiter:
        """Return a waiter that is notified when others end a lease of this instance or request a cancel."""
        return self._context.wakeups.waiter([lease_topic(validation.name(instance, "instance"))])

    async def peek(self, ids: Sequence[UUID | str]) -> dict[UUID, LeaseSnapshot]:
        """Return the live lease and the requested cancel of each execution that exists, by one plain read."""
        checked = [parse_id(id_) for id_ in validation.batch(ids, "ids")]
        return await self._context.call(peek_leases, LeaseQuery(self._context.leased_namespaces, checked))

    async def held(self, instance: str) -> list[Lease]:
        """Return the live leases of a worker instance, including leases whose claim got no reply."""
        name = validation.name(instance, "instance")
        return await self._context.call(held, HeldQuery(self._context.leased_namespaces, name))

    async def expired(self, *, limit: int = 100, cursor: str | None = None) -> Page:
        """Return one page of executions whose lease is past its time, newest id first.

        No worker has renewed these leases, and no background duty has ended them yet. Normally a duty does so within a
        second. Pass `next_cursor` of the page to get the next one.
        """
        size = validation.integer(limit, "limit", 1, validation.MAX_BATCH)
        query = query_digest(self._context.namespace, {"expired leases": True})
        before = LAST_ID if cursor is None else open_cursor(cursor, query)
        expired = await self._context.call(list_expired, IdPage(before, size + 1))
        return Page(*cut_page(expired, size, query, lambda execution: execution.id))

    # Keeping leases.

    async def renew(self, fence: Fence) -> Renewed:
        """Extend the lease, so that it lasts one full term from now. An expired lease cannot be renewed.

        This call never waits for a row lock. If another transaction has locked the execution, it raises `lease_busy`.
        """
        return await self._context.call(self._context.renew, requests.parse_fence(fence))

    async def renew_many(self, fences: Sequence[Fence]) -> list[Renewed | FlowFabricError]:
        """Extend many leases, and return the outcome or the refusal of each, in order."""
        checked = [requests.parse_fence(fence) for fence in validation.batch(fences, "fences")]
        return await self._context.call_many(self._context.renew, checked)

    def report_locks_to(self, listener: LockListener) -> AbstractContextManager[None]:
        """Return a context manager that reports leases whose row a `transact` of this engine has locked."""
        lease_requests.check_functions(
            lock_began=getattr(listener, "lock_began", None), lock_ended=getattr(listener, "lock_ended", None)
        )
        return self._context.lease_locks.report_to(listener)

    async def progress(self, fence: Fence, percent: int | None = None, message: str | None = None) -> None:
        """Store the progress of the attempt.

        If `percent` or `message` is not passed, its stored value stays unchanged.
        """
        await self._context.call(PROGRESS, lease_requests.progress_report(fence, percent, message))

    # Recording steps.

    async def checkpoint(self, fence: Fence, steps: Sequence[Step]) -> int:
        """Record step results, and return the number of recorded steps.

        A final step may be repeated, but not changed.
        """
        return await self.checkpoint_nowait(fence, steps)

    def checkpoint_nowait(self, fence: Fence, steps: Sequence[Step]) -> asyncio.Future[int]:
        """Start to record step results, and return the future of the result that `checkpoint` returns."""
        return self._context.call_nowait(CHECKPOINT, lease_requests.checkpoint(fence, steps))

    async def retry_steps(self, fence: Fence, retries: Sequence[StepRetry], steps: Sequence[Step]) -> int:
        """Report steps that failed and are tried again, and record their open steps. Return the number of new events.

        Each retry is an event, and the newest is the last failure of the execution. A repeated report has no effect.
        `retries` must name each step only once.
        """
        return await self._context.call(retry_steps, lease_requests.step_retries(fence, retries, steps))

    async def transact(
        self,
        fence: Fence,
        body: Callable[[Any], Any],
        record: Callable[[Any], Step],
        *,
        repeated_step: str | None = None,
    ) -> Any:
        """Run `body` on a connection inside the engine's own transaction, and return its result.

        `record` converts the result of `body` to a step, which is committed together with the writes of `body`. The
        commit also extends the lease. An exception in either function rolls everything back and is raised unchanged.

        On PostgreSQL, `body` is an async function that takes an asyncpg connection. The connection has the default
        settings of the server and the role, except for `synchronous_commit`, the statement timeout and the time zone.
        `body` may take longer than the lease. After a conflict with another transaction, `body` runs again. On SQLite,
        `body` is a plain function that takes the store's `sqlite3` connection for writes. `body` then runs on the
        writer thread, and blocks all other writes. So after a third of the lease, or `transaction_limit` of `connect`,
        everything is rolled back, and the call is refused with `transaction_too_long`. `body` must not end the
        transaction or close the connection, but it may use savepoints. If the step was recorded before, the call is
        refused with `step_already_recorded`, and everything is rolled back. A call that is repeated because its reply
        was lost passes the name of its step as `repeated_step`. It is then refused before `body` runs.
        """
        lease_requests.check_functions(body=body, record=record)
        fence = requests.parse_fence(fence)
        step = None if repeated_step is None else validation.name(repeated_step, "repeated_step")
        with self._context.lease_locks.watch(fence.lease_id) as lock:
            request = Transact(fence=fence, body=body, record=record, watch=lock, repeated_step=step)
            return await self._context.call(transact, request)

    async def journal(self, fence: Fence, limit: int = validation.MAX_STEPS) -> list[RecordedStep]:
        """Return the valid recorded steps in order. This call does not detect a lost lease, because it only reads."""
        limit = validation.integer(limit, "limit", 1, validation.MAX_STEPS)
        fence = requests.parse_fence(fence)
        return await self._context.for_lease(fence).call(READ_JOURNAL, JournalRequest(fence.execution_id, limit))

    async def read_waits(
        self,
        fence: Fence,
        waitpoints: Mapping[str, int],
        children: Sequence[UUID | str] = (),
        *,
        skipped: Sequence[int] = (),
        limits: Mapping[str, int] | None = None,
    ) -> WaitSnapshot:
        """Return a snapshot of the waits of an execution, in one read.

        `waitpoints` maps the key of each waitpoint to a position. The snapshot contains unused signals after that
        position, a hundred or as many as `limits` has for the key, and the signals with the sequence numbers `skipped`.
        It also contains the outcomes of those `children` that have ended, and the waits that an operator ended. This
        call does not detect a lost lease, because it only reads.
        """
        request = lease_requests.wait_snapshot_request(fence, waitpoints, children, skipped, limits)
        return await self._context.for_lease(fence).call(READ_WAITS, request)

    # Children.

    async def submit_children(
        self, fence: Fence, submissions: Sequence[ChildSubmission], *, steps: Sequence[Step] = ()
    ) -> list[Submitted]:
        """Submit children of this execution, and record `steps` in the same commit.

        If the call is repeated under the same keys, in this or a later attempt, it returns the existing children.
        """
        request = lease_requests.submit_children_request(fence, submissions, steps)
        outcomes = await self._context.call(submit_children, request)
        if not all(child.detached for child in request.children):
            self._context.note_linked(request.fence.lease_id)
        self._context.due_at(None)
        return outcomes

    async def wait_children(
        self,
        fence: Fence,
        children: Sequence[UUID | str],
        *,
        join: Join = ALL_OF,
        edge: EdgeKind | str = EdgeKind.ON_COMPLETION,
        key: str | None = None,
        steps: Sequence[Step] = (),
    ) -> WaitingForChildren | ChildrenReady:
        """Give up the lease until the join over these children is decided; then the same attempt continues.

        If the join is decided already, keep the lease and return the outcomes of the children.

        `edge` selects which outcomes of a child count for the join; by default, all outcomes count. With `on_success`,
        the parent also continues as soon as the join can no longer be satisfied. With `all_of`, that is at the first
        failure. With `any_of`, the parent continues at the first success, or when no child can succeed any longer.
        """
        request = lease_requests.wait_children_request(fence, children, join, key, steps, edge)
        return await self._context.call_last(wait_children, request)

    async def cancel_children(
        self,
        fence: Fence,
        children: Sequence[UUID | str],
        reason: str = "",
        *,
        source: str = OVERRIDE,
        principal: str = OPERATOR,
    ) -> list[UUID]:
        """Cancel children of this execution with all of their descendants, even while workers run them.

        Children that have ended do not change. Return those of the given ids that are not children of this execution.
        """
        request = lease_requests.cancel_children_request(fence, children, principal, reason, source)
        unrelated = await self._context.call(cancel_children, request)
        self._context.due_at(None)
        return unrelated

    # Giving up the lease.

    async def complete(
        self, fence: Fence, result: bytes = b"", *, encoding: str = "json", steps: Sequence[Step] = ()
    ) -> Ended:
        """Complete the execution with its result, and record `steps` in the same commit."""
        request = lease_requests.completion(fence, result, encoding, steps)
        is_linked = self._context.forget_linked(request.fence.lease_id)
        return await self._context.call(COMPLETE_LINKED if is_linked else COMPLETE, request)

    async def complete_many(
        self, results: Sequence[tuple[Fence, bytes]], *, encoding: str = "json"
    ) -> list[Ended | FlowFabricError]:
        """Complete many executions, and return the outcome or the refusal of each, in order."""
        completions = lease_requests.completions(results, encoding)
        for each in completions:
            self._context.forget_linked(each.fence.lease_id)
        return await self._context.call_many(COMPLETE, completions)

    async def fail(
        self,
        fence: Fence,
        message: str,
        *,
        failure_class: FailureClass | str = FailureClass.TRANSIENT,
        category: str | None = None,
        detail: bytes | None = None,
        steps: Sequence[Step] = (),
    ) -> RetryScheduled | Ended:
        """Fail the attempt. The execution's stored policy decides whether and when another attempt starts."""
        chance = self._context.chance()
        report = lease_requests.failure_report(fence, message, failure_class, category, detail, steps, chance=chance)
        outcome = await self._context.call_last(fail, report)
        if isinstance(outcome, RetryScheduled):
            self._context.due_at(outcome.at)
        return outcome

    async def delay(
        self,
        fence: Fence,
        *,
        until: datetime | None = None,
        after: validation.Duration | None = None,
        steps: Sequence[Step] = (),
    ) -> Delayed:
        """Give up the lease. The same attempt continues at the time `until`, or after the duration `after`."""
        outcome = await self._context.call_last(delay, lease_requests.delay_request(fence, until, after, steps))
        assert isinstance(outcome, Delayed), "a request with a time is a delay"
        self._context.due_at(outcome.until)
        return outcome

    async def suspend(
        self,
        fence: Fence,
        waitpoints: Sequence[Bound | str],
        condition: Condition | None = None,
        *,
        reason: SuspensionReason | str = SuspensionReason.WAITING_FOR_SIGNAL,
        timeout: validation.Duration | None = None,  # noqa: ASYNC109 - the suspension's
        timeout_at: datetime | None = None,
        on_timeout: OnTimeout | str = OnTimeout.FAIL,
        resume_delay: validation.Duration = 0,
        unused_waitpoints: UnusedWaitpoints | str = UnusedWaitpoints.CLOSE,
        key: str | None = None,
        steps: Sequence[Step] = (),
        id: UUID | str | None = None,
    ) -> Suspended | Satisfied:
        """Give up the lease until signals at these waitpoints satisfy the condition.

        Without a condition, every waitpoint needs one signal. If signals that arrived earlier already satisfy the
        condition, keep the lease and return `Satisfied`.

        A repeat with the same suspension `id` returns the first result with its signals. Without an id, the engine
        mints one. If the store stays unavailable, the fields of the error contain the `id`; pass that id when you
        repeat the call. With a `key`, the call can be repeated safely in every later attempt.
        """
        request = lease_requests.suspend_request(
            self._context,
            fence,
            waitpoints,
            condition,
            timeout,
            timeout_at,
            reason=reason,
            on_timeout=on_timeout,
            resume_delay=resume_delay,
            rest=unused_waitpoints,
            key=key,
            steps=steps,
            id=id,
        )
        try:
            outcome = await self._context.call_last(self._context.waits.suspend, request)
        except Unavailable as error:
            raise with_ids(error, id=request.suspension_id) from error
        if (due := request.first_due(self._context.wakeups.store_now())) is not None:
            self._context.due_at(due)
        return outcome

    async def hold(self, fence: Fence, reason: str, report: str, *, steps: Sequence[Step] = ()) -> Held:
        """Give up the lease until an operator unholds the execution; then the same attempt continues.

        The report describes the problem for the operator. The report is shown with the execution and kept in the
        execution's history. `operator.unhold_all` can select executions by their hold reason.
        """
        return await self._context.call_last(hold_own, lease_requests.hold_request(fence, reason, report, steps))

    async def postpone(
        self,
        fence: Fence,
        reason: str,
        report: str,
        *,
        version: str,
        after: validation.Duration | None = None,
        steps: Sequence[Step] = (),
    ) -> Delayed | Held:
        """Give up the lease of a run that could not continue. No attempt is used.

        With the reason `diverged`, the execution waits for a worker with another code version, or is held with the
        report. With the reason `run_failed`, it runs again soon, and is held after five such runs of an attempt.
        """
        request = lease_requests.postponement(fence, reason, report, version, after, steps)
        outcome = await self._context.call_last(postpone, request)
        if isinstance(outcome, Delayed):
            self._context.due_at(outcome.until)
        return outcome

    async def continue_with(
        self, fence: Fence, payload: bytes, *, encoding: str = "json", steps: Sequence[Step] = ()
    ) -> Continued:
        """Give up the lease, and start the same execution again with this input, as its next generation.

        The new generation's journal contains only `steps`. Callers that wait for the execution keep waiting. Its
        children and its standing waitpoints, with their signals, stay. Other waitpoints close. This does not count as
        an attempt.
        """
        request = lease_requests.continuation(fence, payload, encoding, steps)
        return await self._context.call_last(continue_with, request)

    async def release(self, fence: Fence) -> Released:
        """Give the lease back, for example on shutdown, so that another worker can continue the same attempt."""
        outcome = await self._context.call_last(delay, DelayRequest(fence=requests.parse_fence(fence)))
        assert isinstance(outcome, Released), "a request without a time is a release"
        return outcome

    async def cancel(self, fence: Fence, reason: str = "", *, steps: Sequence[Step] = ()) -> Ended:
        """Cancel the execution of this lease."""
        return await self._context.call_last(cancel_own, lease_requests.own_cancel(fence, reason, steps))

    async def _claim_by_id(
        self, id: object, worker: object, capabilities: object, lease_ttl: object, *, only_resumed: bool
    ) -> Lease:
        offered = validation.capabilities(capabilities, "capabilities")
        request = ClaimById(parse_id(id), self._terms(worker, lease_ttl), offered, only_resumed)
        requested_at = time.monotonic()
        lease = await self._context.call(claim_execution, request)
        note_times(self._context, [lease], requested_at)
        return lease

    def _terms(self, worker: object, lease_ttl: object) -> LeaseTerms:
        ttl = lease_requests.lease_ttl(lease_ttl)
        return LeaseTerms(worker=requests.parse_worker(worker), lease_id=self._context.new_lease_id(), ttl=ttl)
