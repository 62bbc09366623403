"""Groups of concurrent calls: `gather` needs all results, `settle` all outcomes, and `race` the first success."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, TypeVar, overload
from uuid import UUID

from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.executions.requests import StepStatus
from flowfabric.runtime.branch import Branch, require_branch
from flowfabric.runtime.branch_group import (
    BranchGroup,
    Member,
    are_exchanged,
    describe_members,
    mark_awaited,
    validate_members,
)
from flowfabric.runtime.durable_call import DurableCall, awaiting_branch, close_unstarted
from flowfabric.runtime.journal import KEYED, CallId
from flowfabric.runtime.run import is_final
from flowfabric.values import failures
from flowfabric.values.aliases import Durable, T
from flowfabric.values.errors import AllFailed, CancelRequested, Unwind
from flowfabric.values.guards import is_a
from flowfabric.values.records import Completed, ErrorInfo, Failed, RaceResult

T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")
_FAILURE_KIND = "accident"


@overload
def gather(a: Awaitable[T1], b: Awaitable[T2], /, *, limit: int | None = None) -> Durable[tuple[T1, T2]]: ...
@overload
def gather(
    a: Awaitable[T1], b: Awaitable[T2], c: Awaitable[T3], /, *, limit: int | None = None
) -> Durable[tuple[T1, T2, T3]]: ...
@overload
def gather(
    a: Awaitable[T1], b: Awaitable[T2], c: Awaitable[T3], d: Awaitable[T4], /, *, limit: int | None = None
) -> Durable[tuple[T1, T2, T3, T4]]: ...
@overload
def gather(*calls: Awaitable[T], limit: int | None = None) -> Durable[tuple[T, ...]]: ...
def gather(*calls: Awaitable[Any], limit: int | None = None) -> Any:
    """Return all results in the order of the calls. The first failure ends the other calls and is raised.

    At most `limit` calls run at the same time.
    """
    return _make_group(Gather, "gather", calls, limit)


@overload
def settle(
    a: Awaitable[T1], b: Awaitable[T2], /, *, limit: int | None = None
) -> Durable[tuple[Completed[T1] | Failed, Completed[T2] | Failed]]: ...
@overload
def settle(
    a: Awaitable[T1], b: Awaitable[T2], c: Awaitable[T3], /, *, limit: int | None = None
) -> Durable[tuple[Completed[T1] | Failed, Completed[T2] | Failed, Completed[T3] | Failed]]: ...
@overload
def settle(
    a: Awaitable[T1], b: Awaitable[T2], c: Awaitable[T3], d: Awaitable[T4], /, *, limit: int | None = None
) -> Durable[tuple[Completed[T1] | Failed, Completed[T2] | Failed, Completed[T3] | Failed, Completed[T4] | Failed]]: ...
@overload
def settle(*calls: Awaitable[T], limit: int | None = None) -> Durable[tuple[Completed[T] | Failed, ...]]: ...
def settle(*calls: Awaitable[Any], limit: int | None = None) -> Any:
    """Return how each call ended, in the order of the calls. A failure does not end the other calls."""
    return _make_group(Settle, "settle", calls, limit)


@overload
def race(a: Awaitable[T1], b: Awaitable[T2], /) -> Durable[RaceResult[T1 | T2]]: ...
@overload
def race(a: Awaitable[T1], b: Awaitable[T2], c: Awaitable[T3], /) -> Durable[RaceResult[T1 | T2 | T3]]: ...
@overload
def race(*calls: Awaitable[T]) -> Durable[RaceResult[T]]: ...
def race(*calls: Awaitable[Any]) -> Any:
    """Return the index and value of the first call that succeeds. Raise `AllFailed` if no call succeeds.

    The other calls are ended: their steps and children are cancelled, and their waits are closed.
    """
    if not calls:
        raise InvalidRequest("empty_race", "a race needs at least one call")
    return _make_group(Race, "race", calls, None)


def _make_group(kind: type[CallGroup], name: str, calls: Sequence[Any], limit: int | None) -> CallGroup:
    try:
        return kind(require_branch(name), name, calls, limit)
    except BaseException:
        close_unstarted(calls)
        raise


class CallGroup(DurableCall[Any]):
    """Several concurrent calls.

    If one member decides the outcome of the group, that member is recorded, and later runs run only that member.
    """

    def __init__(self, branch: Branch, name: str, calls: Sequence[Any], limit: int | None) -> None:
        self.limit = None if limit is None else validation.integer(limit, "limit", 1, validation.MAX_COUNT)
        self.members: Sequence[Member] = validate_members(calls)
        try:
            super().__init__(branch, name, name)
        except BaseException:
            for member in self.members:
                mark_awaited(member)
            raise

    async def resolve(self) -> Any:
        branch, group = awaiting_branch(self), BranchGroup(self, self.members, self.limit)
        try:
            self._check_task(branch)
            self.run.calls.check_alive(branch)
            if "given_up" in self._facts():
                await self._wait_for_cancel(group)
            self._check_members()
            branch.group = group
            return await self._decide_or_abandon(group)
        except Unwind:
            # The lease may be lost before the decision is recorded. No other code ends the members then.
            if group.running_branches():
                await self._leave(group)
            raise
        finally:
            branch.group = None
            group.skip_waiting()

    async def _decide_or_abandon(self, group: BranchGroup) -> Any:
        try:
            return await self.decide(group)
        except asyncio.CancelledError:
            if group.has_open_members:
                await self._abandon(group)
            raise

    def _check_task(self, branch: Branch) -> None:
        if asyncio.current_task() is not branch.task:
            message = (
                f"{self.path} is awaited in an asyncio task, as by wait_for or create_task, and could not be "
                f"suspended; await it in the function, and for a time limit use race(…, sleep(…))"
            )
            raise InvalidRequest("group_in_raw_task", message, path=self.path)

    async def _abandon(self, group: BranchGroup) -> None:
        """End the members after the code around the group has cancelled the group, as `asyncio.timeout` does.

        The members end like the losers of a race. The cancellation is recorded first, since a later run must repeat it.
        """
        if self.is_left(asyncio.CancelledError()):
            await self._leave(group)
        else:
            await self._end_members(group, StepStatus.ABANDONED, cancel_steps=True, given_up=True)

    async def _leave(self, group: BranchGroup) -> None:
        """End the members because the run unwinds. Code that awaits something else may never reach a durable call."""
        group.cancel_code()
        await group.wait_ended()

    async def _wait_for_cancel(self, group: BranchGroup) -> NoReturn:
        """Wait, without running members, until the code around the group cancels it, as it did in an earlier run."""
        group.skip_waiting()
        await self.cancel_again(group)
        self.remember(StepStatus.ABANDONED, **self._facts())
        await asyncio.get_running_loop().create_future()
        raise AssertionError("this future is never resolved")

    async def decide(self, group: BranchGroup) -> Any:
        """Run the members and return the group's value."""
        raise NotImplementedError

    def deciding_member(self) -> int | None:
        """Return the index of the member that is recorded as deciding the group, or None."""
        return None if self.record is None else self.record.facts.get("member")

    def is_left(self, error: BaseException) -> bool:
        """Return True if a member ended with this error only because the run or this branch unwinds.

        The other members then end too, but their children and waitpoints stay open for the next run.
        """
        return is_a(error, Unwind) or self.run.is_over or awaiting_branch(self).is_dropped

    async def conclude_cancelled(self, group: BranchGroup, index: int, error: BaseException) -> None:
        """End the other members after member `index` was cancelled.

        After a request to cancel, running async steps are interrupted, so that the code around the group can clean up
        in time. The member is recorded, because another member may still succeed while the members are ended, and must
        not decide the group in a later run.
        """
        is_requested = is_a(error, CancelRequested)
        cancel_steps = is_requested or self.call_id.kind == "race"
        await self.conclude(group, index, StepStatus.FAILED, cancel_steps=cancel_steps, let_finish=is_requested)

    async def conclude(
        self, group: BranchGroup, index: int, status: StepStatus, *, cancel_steps: bool, let_finish: bool = False
    ) -> None:
        """End the other members after member `index` has decided the group.

        First record the decision, and which children and waitpoints will be ended. Without that record, a later run
        could take the end of such a child or waitpoint for the event that decided the group.
        """
        if self.deciding_member() is not None:
            self.remember(status, **self._facts())
            return
        await self._end_members(group, status, cancel_steps=cancel_steps, let_finish=let_finish, member=index)

    def _check_members(self) -> None:
        """Diverge if the group is decided, and its members are not the recorded ones in the same order.

        The record names the deciding member by its index only.
        """
        recorded = self._facts().get("members", "").split()
        if recorded and are_exchanged(recorded, describe_members(self.members)):
            why = f"the members of {self.path} are not the recorded ones in the same order"
            self.run.calls.diverge(self.run.calls.journal.report(self.branch.scope, self.call_id, why))

    async def _end_members(
        self, group: BranchGroup, status: StepStatus, *, cancel_steps: bool, let_finish: bool = False, **why: Any
    ) -> None:
        facts = await self._record_decision(group.open_children(), group.open_waitpoints(), **why)
        await group.drop(cancel_steps=cancel_steps, let_finish=let_finish)
        self.remember(status, **facts)

    async def _record_decision(self, losers: Sequence[UUID], closed: Sequence[str], **why: Any) -> Mapping[str, Any]:
        """Record what decided the group, before the other members are ended. Return the facts of that record."""
        facts = {**why, "losers": [str(child) for child in losers], "closed": list(closed)}
        if "member" in why and len(self.members) > 1:
            facts["members"] = " ".join(describe_members(self.members))
        record = self.call_id.record(StepStatus.OPEN, **facts)
        if losers or closed:
            await self.run.record_writer.write(record)
        else:
            self.run.record_writer.enqueue(record)
        return facts

    async def cancel_again(self, group: BranchGroup) -> None:
        """Cancel the recorded losers again, since an interrupted run may not have cancelled all of them."""
        if self.record is not None and not self.record.is_final:
            await group.cancel_children([UUID(child) for child in self._facts().get("losers", ())])
            await group.close_waitpoints(self._facts().get("closed", ()))

    def remember(self, status: StepStatus, **facts: Any) -> None:
        """Write the final record of the group with the next commit.

        With facts, the group was decided early. Then also record the steps of the other members as abandoned.
        """
        if self.record is None or not self.record.is_final:
            if facts:
                self._abandon_retries(facts.get("member"))
            self.run.record_writer.enqueue(self.call_id.record(status, **facts))

    def _abandon_retries(self, deciding: int | None) -> None:
        """Record as abandoned the steps of ended members that wait for their next try.

        An earlier run may have given up its lease while they waited, so that this run never reached them. A step that
        still runs in an asyncio task of the user records its own end.
        """
        paths, scopes = set[str](), list[str]()
        for index, member in enumerate(self.members):
            if index != deciding:
                _collect_places(member, f"{self.path}[{index}]/", paths, scopes)
        running = {step.branch.scope.prefix for step in self.run.in_flight.values() if step.branch.is_dropped}
        for record in self.run.calls.journal.waiting_steps():
            is_inside = record.path in paths or record.scope.startswith(tuple(scopes))
            if is_inside and record.scope not in running:
                facts = {name: record.facts[name] for name in ("tries", "error")}
                self.run.record_writer.enqueue(replace(record, status=StepStatus.ABANDONED, facts=facts))

    def _facts(self) -> Mapping[str, Any]:
        return {} if self.record is None else self.record.facts


class Gather(CallGroup):
    """A group that returns all results, or raises the first failure."""

    async def decide(self, group: BranchGroup) -> Any:
        values: dict[int, Any] = {}
        await self.cancel_again(group)
        async for index, ending in group.results(only=self.deciding_member()):
            if ending.error is None:
                values[index] = ending.value
                continue
            await self._fail(group, index, ending.error)
            raise ending.error
        if self.deciding_member() is not None:
            why = "the branch that failed no longer fails"
            self.run.calls.diverge(self.run.calls.journal.report(self.branch.scope, self.call_id, why))
        self.remember(StepStatus.OK)
        return tuple(values[index] for index in range(len(self.members)))

    async def _fail(self, group: BranchGroup, index: int, error: BaseException) -> None:
        if self.is_left(error):
            await group.wait_ended()
        elif is_a(error, asyncio.CancelledError):
            await self.conclude_cancelled(group, index, error)
        elif self._is_final(error):
            await self.conclude(group, index, StepStatus.FAILED, cancel_steps=False)
        else:
            branches = group.running_branches()
            await group.release()
            self.run.calls.unrecorded_failures.add(
                awaiting_branch(self), error, lambda: self._accept(group, branches, index)
            )

    def _is_final(self, error: BaseException) -> bool:
        return self.deciding_member() is not None or is_final(error, self.run.task.settings.raises)

    async def _accept(self, group: BranchGroup, branches: Sequence[Branch], index: int) -> None:
        """Record the group as failed, because the function continued after the unrecorded failure of a member."""
        losers = [child for branch in branches for child in branch.children]
        closed = [key for branch in branches for key in branch.waitpoints]
        facts = await self._record_decision(losers, closed, member=index)
        await group.cancel_children(losers)
        await group.close_waitpoints(closed)
        self.remember(StepStatus.FAILED, **facts)


class TolerantGroup(CallGroup):
    """A group whose other members continue when one member fails."""

    def restore_failures(self, group: BranchGroup) -> dict[int, ErrorInfo]:
        """Return the recorded failures of members by index. Do not run these members again."""
        journal, errors = self.run.calls.journal, dict[int, ErrorInfo]()
        for index in range(len(self.members)):
            record = journal.get(self._failure_id(index).path)
            if record is not None and record.kind == _FAILURE_KIND:
                group.skip(index)
                errors[index] = failures.from_json(record.facts["error"])
        return errors

    async def record_failure(self, group: BranchGroup, index: int, error: BaseException) -> ErrorInfo:
        """Return the failure of a member as a value, so that the group continues.

        If no step or child has recorded the failure, record it here, since the task's function will see it. If an
        earlier run recorded the group as ended, raise the error, because the member did not fail in that run.
        """
        info = failures.wrapped_error(error) or failures.error_info(error)
        if not is_final(error, self.run.task.settings.raises):
            if self.record is not None and self.record.is_final:
                await group.release()
                raise error
            document = failures.to_json(info)
            self.run.record_writer.enqueue(self._failure_id(index).record(StepStatus.FAILED, error=document))
        return info

    def _failure_id(self, index: int) -> CallId:
        return CallId(f"{self.path}[{index}]", self.call_id.scope, KEYED, _FAILURE_KIND)


class Settle(TolerantGroup):
    """A group that returns the outcome of each call."""

    async def decide(self, group: BranchGroup) -> Any:
        await self.cancel_again(group)
        accidents = self.restore_failures(group)
        outcomes: dict[int, Completed[Any] | Failed] = {index: Failed(info) for index, info in accidents.items()}
        async for index, ending in group.results(only=self.deciding_member()):
            if ending.error is None:
                outcomes[index] = Completed(ending.value)
                continue
            if self.is_left(ending.error):
                await group.wait_ended()
                raise ending.error
            if is_a(ending.error, asyncio.CancelledError):
                await self.conclude_cancelled(group, index, ending.error)
                raise ending.error
            outcomes[index] = Failed(await self.record_failure(group, index, ending.error))
        self.remember(StepStatus.OK)
        return tuple(outcomes[index] for index in range(len(self.members)))


class Race(TolerantGroup):
    """A group that returns the first success."""

    async def decide(self, group: BranchGroup) -> Any:
        await self.cancel_again(group)
        failed = self.restore_failures(group)
        async for index, ending in group.results(only=self.deciding_member()):
            if ending.error is None:
                await self.conclude(group, index, StepStatus.OK, cancel_steps=True)
                return RaceResult(index, ending.value)
            if self.is_left(ending.error):
                await group.wait_ended()
                raise ending.error
            if is_a(ending.error, asyncio.CancelledError):
                await self.conclude_cancelled(group, index, ending.error)
                raise ending.error
            failed[index] = await self.record_failure(group, index, ending.error)
        self.remember(StepStatus.OK)
        raise AllFailed([failed[index] for index in sorted(failed)])


def _collect_places(member: Member, scope: str, paths: set[str], scopes: list[str]) -> None:
    """Add the paths of the member's calls, or the scope of its calls if it is a branch."""
    if not isinstance(member, DurableCall):
        scopes.append(scope)
        return
    paths.add(member.path)
    for index, inner in enumerate(member.members):
        _collect_places(inner, f"{member.path}[{index}]/", paths, scopes)
