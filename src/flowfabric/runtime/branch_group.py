"""Branches of a group. At most `limit` of them run at a time, and the group handles each one as it ends.

The branch that waits for a group is idle. An ended member counts as active until the group handles its result, so
that the run is not suspended before that.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from flowfabric.core.errors import FlowFabricError, InvalidRequest
from flowfabric.core.validation import MAX_BATCH
from flowfabric.runtime.branch import Branch, BranchResult, await_result, branch_result, cancel_code, start_branch
from flowfabric.runtime.durable_call import DurableCall, awaiting_branch
from flowfabric.runtime.journal import Scope
from flowfabric.runtime.record_writer import retry_while_owned
from flowfabric.runtime.sync_bridge import Thunk, run_in_segments
from flowfabric.runtime.waits import GroupNeed, WaitGroup, close_waitpoints
from flowfabric.values.errors import Unwind
from flowfabric.values.guards import is_a

if TYPE_CHECKING:
    from flowfabric.runtime.run import TaskRun


Member = DurableCall[Any] | Coroutine[Any, Any, Any] | Thunk[Any]


class BranchGroup:
    """The running members of one group, and the ways to end them early."""

    def __init__(self, group: DurableCall[Any], members: Sequence[Member], limit: int | None) -> None:
        self.run: TaskRun = group.run
        self._group, self._members, self._limit = group, members, limit
        self._parent = awaiting_branch(group)
        self._waiting = deque(range(len(members)))
        self._running: dict[int, tuple[Branch, asyncio.Future[BranchResult]]] = {}
        self._ended: deque[int] = deque()
        self._wakeup: asyncio.Future[None] | None = None
        self.has_winner = False  # True while a member of a race has ended its wait, until the member has failed.
        self._wait_group = None if limit is not None else WaitGroup(GroupNeed(group.call_id.kind))

    async def results(self, only: int | None = None) -> AsyncIterator[tuple[int, BranchResult]]:
        """Yield the index and result of each member as it ends. With `only`, run only the member with that index."""
        if only is not None:
            self.skip_waiting(but=only)
        async for recorded in self._replay_recorded():
            yield recorded
        while self._waiting or self._running:
            while self._waiting and (self._limit is None or len(self._running) < self._limit):
                self._start(self._waiting.popleft())
            index = await self._next_ended()
            branch, future = self._running.pop(index)
            branch.task = None  # The task's context refers to the branch, so this breaks a cycle.
            self.run.suspender.branch_idle()
            ending = self._check_result(branch, branch_result(future))
            self.has_winner = self.has_winner and ending.error is None
            yield index, ending

    async def _replay_recorded(self) -> AsyncIterator[tuple[int, BranchResult]]:
        """Yield the results of members whose outcome is recorded, without starting branches for them."""
        for index in tuple(self._waiting):
            member = self._members[index]
            if isinstance(member, DurableCall) and member.has_outcome:
                self._waiting.remove(index)
                yield index, await await_result(member)

    def _start(self, index: int) -> None:
        member = self._members[index]
        is_call = isinstance(member, DurableCall)
        scope = self._parent.scope if is_call else Scope(f"{self._group.path}[{index}]/")
        branch = Branch(self.run, scope, self._parent, is_plain=isinstance(member, Thunk))
        branch.wait_group = self._wait_group if is_call else None
        branch.race = self if is_call and self._group.call_id.kind == "race" else None
        self.run.suspender.branch_active()
        future: asyncio.Future[BranchResult]
        if isinstance(member, Thunk):
            future = self.run.loop.create_task(run_in_segments(branch, member.fn))
        else:
            future = start_branch(branch, await_result(member))
        self._running[index] = branch, future
        future.add_done_callback(lambda _: self._note_ended(index))

    def _note_ended(self, index: int) -> None:
        self._ended.append(index)
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    async def _next_ended(self) -> int:
        """Return the index of the next member that ends. The branch that awaits the group is idle until then."""
        if not self._ended:
            self._wakeup = self.run.loop.create_future()
            self.run.suspender.branch_idle()
            try:
                await self._wakeup
            finally:
                self.run.suspender.branch_active()
        return self._ended.popleft()

    def _check_result(self, branch: Branch, ending: BranchResult) -> BranchResult:
        """Return the result of a branch, after checking that it reached every call that was recorded in it.

        Once the run unwinds, a branch may have ended only because of the unwinding. So return `Unwind` as its error,
        regardless of its result.
        """
        if self.run.calls.has_unwound and not is_a(ending.error, Unwind):
            return BranchResult(error=Unwind())
        if ending.error is not None:
            branch.drop()
        elif branch.scope is not self._parent.scope and not self.run.is_over:
            report = self.run.calls.check_end(branch.scope)
            if report is not None:
                self.run.calls.diverge(report)
        return ending

    def skip(self, index: int) -> None:
        """Do not run the member with this index. Mark it as awaited."""
        self._waiting.remove(index)
        mark_awaited(self._members[index])

    def skip_waiting(self, but: int | None = None) -> None:
        """Do not start the members that are not running yet, except `but`. Mark them as awaited."""
        for index in self._waiting:
            if index != but:
                mark_awaited(self._members[index])
        self._waiting = deque(() if but is None else (but,))

    @property
    def has_open_members(self) -> bool:
        """True while there are members that have not ended."""
        return bool(self._waiting or self._running)

    async def drop(self, *, cancel_steps: bool, let_finish: bool = False) -> None:
        """End the members that still run, and allow no new durable calls in them.

        Cancel their running steps if `cancel_steps` is True, otherwise wait for these steps. With `let_finish`, wait
        for the steps that a request to cancel must not interrupt. Cancel the members' children and close their
        waitpoints.
        """
        branches = self.running_branches()
        for branch in branches:
            branch.drop()
        children, waitpoints = self.open_children(), self.open_waitpoints()
        if cancel_steps:
            self.cancel_code(let_finish=let_finish)
        self.run.suspender.unwind_dropped()
        await self._run_to_end(self._drop(branches, children, waitpoints))

    async def _drop(self, branches: Sequence[Branch], children: Sequence[UUID], waitpoints: Collection[str]) -> None:
        await self.cancel_children(children)
        await self.close_waitpoints(waitpoints)
        await self._drain()
        # Cancel the children whose submit was still in progress at the first cancellation.
        await self.cancel_children([child for branch in branches for child in branch.children])

    async def release(self) -> None:
        """End the members that still run, but leave their children and waitpoints open."""
        for branch, _ in self._running.values():
            branch.drop()
        self.run.suspender.unwind_dropped()
        await self.wait_ended()

    async def wait_ended(self) -> None:
        """Wait until every started member has ended."""
        await self._run_to_end(self._drain())

    async def _drain(self) -> None:
        self.skip_waiting()
        async for _ in self.results():
            pass

    async def _run_to_end(self, ending: Coroutine[Any, Any, None]) -> None:
        """Await the coroutine to its end, even if the caller is cancelled.

        If the caller is cancelled, cancel only the running code of the members.
        """
        task = self.run.loop.create_task(ending)
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                if task.cancelled():
                    raise Unwind from None
                self.cancel_code()

    def cancel_code(self, *, let_finish: bool = False) -> None:
        """Cancel the running steps of members, and all other code in the members that awaits something."""
        cancel_code(self.run, set(self.running_branches()), let_finish=let_finish)

    def running_branches(self) -> list[Branch]:
        """Return the branches of running members."""
        return [branch for branch, _ in self._running.values()]

    def open_children(self) -> list[UUID]:
        """Return the ids of the children that running members wait for."""
        return [child for branch in self.running_branches() for child in branch.children]

    def open_waitpoints(self) -> list[str]:
        """Return the keys of the waitpoints that were opened only for running members."""
        return [key for branch in self.running_branches() for key in branch.waitpoints]

    async def close_waitpoints(self, keys: Collection[str]) -> None:
        """Close waitpoints of ended members, since nothing would read signals that arrive there."""
        await close_waitpoints(self.run, keys, f"{self._group.path} has ended")

    async def cancel_children(self, children: Sequence[UUID]) -> None:
        """Cancel these children of members. Leave children that have already ended as they are."""
        engine, fence, reason = self.run.engine, self.run.lease.fence, f"{self._group.path} has ended"
        for start in range(0, len(children), MAX_BATCH):
            some = children[start : start + MAX_BATCH]
            detached = (
                await retry_while_owned(self.run, partial(engine.leases.cancel_children, fence, some, reason)) or ()
            )
            for child in detached:
                with suppress(FlowFabricError):
                    cancel = partial(engine.operator.cancel, child, reason, children=True)
                    await retry_while_owned(self.run, cancel, needs_lease=False)


def validate_members(calls: Sequence[Any]) -> list[Member]:
    """Return the members of a group: durable calls, coroutines, and branches of plain functions.

    Other objects, such as handles, become durable calls by their `__durable_call__` method.
    """
    members: list[Member] = []
    for call in calls:
        if isinstance(call, DurableCall | Thunk | Coroutine):
            members.append(call)
        elif hasattr(call, "__durable_call__"):
            members.append(call.__durable_call__())
        else:
            message = f"a group takes durable calls, handles and coroutines, not {type(call).__name__}"
            raise InvalidRequest("invalid_type", message)
    return members


CALL_SIGN, CODE_SIGN = "=", "~"


def describe_members(members: Sequence[Member]) -> list[str]:
    """Return a short text for each member, by which a later run can recognize the member.

    It depends on the path of a durable call, or on the name of the function of a branch.
    """
    return [_digest_member(member) for member in members]


def _digest_member(member: Member) -> str:
    if isinstance(member, DurableCall):
        sign, name = CALL_SIGN, member.path
    elif isinstance(member, Thunk):
        code = getattr(member.fn, "__code__", None)
        # Most of these functions are lambdas, which have no name of their own.
        sign, name = CODE_SIGN, f"{getattr(code, 'co_qualname', '')} {getattr(code, 'co_names', '')}"
    else:
        sign, name = CODE_SIGN, str(getattr(member, "__qualname__", ""))
    return sign + hashlib.blake2s(name.encode(), digest_size=3).hexdigest()


def are_exchanged(recorded: Sequence[str], now: Sequence[str]) -> bool:
    """Return True if members are not those that were recorded, or not in that order.

    The function of a branch may have a new name. So the names of functions must only not have changed places.
    """
    if len(recorded) != len(now):
        return True
    if any(old != new and CALL_SIGN in (old[0], new[0]) for old, new in zip(recorded, now, strict=True)):
        return True
    return recorded != now and sorted(recorded) == sorted(now)


def mark_awaited(member: Member) -> None:
    """Mark a member that is not run, and the calls inside it, as awaited."""
    if isinstance(member, DurableCall):
        member.is_awaited = True
        for inner in member.members:
            mark_awaited(inner)
    elif not isinstance(member, Thunk):
        member.close()
