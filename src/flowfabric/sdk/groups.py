"""Groups of calls side by side: all of them, each for itself, or the first that succeeds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar, overload
from uuid import UUID

from flowfabric.core import limits
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.requests import StepStatus
from flowfabric.sdk import failures
from flowfabric.sdk.aliases import Durable, T
from flowfabric.sdk.branches import Branches
from flowfabric.sdk.durable import DurableCall, here
from flowfabric.sdk.ending import is_final
from flowfabric.sdk.errors import AllFailed, ExecutionFailed, StepFailed, Unwind
from flowfabric.sdk.journal import KEYED, Made
from flowfabric.sdk.records import Completed, ErrorInfo, Failed, Winner
from flowfabric.sdk.running import Member, checked_members, leave_out
from flowfabric.sdk.units import Unit, require_unit

T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")
_ACCIDENT = "accident"


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
    """All results, in the order of the calls. The first failure ends the others and is raised. `limit` bounds how many
    run at once."""
    return Gather(require_unit("gather"), "gather", calls, limit)


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
    """How each call ended, in their order; none of them ends another."""
    return Settle(require_unit("settle"), "settle", calls, limit)


@overload
def race(a: Awaitable[T1], b: Awaitable[T2], /) -> Durable[Winner[T1 | T2]]: ...
@overload
def race(a: Awaitable[T1], b: Awaitable[T2], c: Awaitable[T3], /) -> Durable[Winner[T1 | T2 | T3]]: ...
@overload
def race(*calls: Awaitable[T]) -> Durable[Winner[T]]: ...
def race(*calls: Awaitable[Any]) -> Any:
    """The first call that succeeds. The others are ended: their steps cancelled, their waits closed, their children
    cancelled. Raises `AllFailed` if none succeeds."""
    if not calls:
        raise InvalidRequest("empty_race", "a race needs at least one call")
    return Race(require_unit("race"), "race", calls, None)


class Group(DurableCall[Any]):
    """Several calls at once. Which of them decided it is recorded, and in later runs only that one is run."""

    def __init__(self, unit: Unit, name: str, calls: Sequence[Any], limit: int | None) -> None:
        self.limit = None if limit is None else limits.whole(limit, "limit", 1, limits.COUNT_MOST)
        self.members: Sequence[Member] = checked_members(calls)
        try:
            super().__init__(unit, name, name)
        except BaseException:
            for member in self.members:
                leave_out(member)
            raise

    async def perform(self) -> Any:
        unit, branches = here(self), Branches(self, self.members, self.limit)
        try:
            self._check_task(unit)
            self.run.calls.check_alive(unit)
            if "given_up" in self._facts():
                await self._wait_to_be_given_up(branches)
            unit.group = branches
            return await self.decide(branches)
        except asyncio.CancelledError:
            if branches.are_open:
                await self._give_up(branches)
            raise
        finally:
            unit.group = None
            branches.leave_out()

    def _check_task(self, unit: Unit) -> None:
        if asyncio.current_task() is not unit.task:
            message = (
                f"{self.path} is awaited in a task of asyncio, as wait_for or create_task make one, so that it could "
                f"not be suspended; await it in the function, and for a time limit use race(…, sleep(…))"
            )
            raise InvalidRequest("group_in_raw_task", message, path=self.path)

    async def _give_up(self, branches: Branches) -> None:
        """The code around the group has cancelled it, as `asyncio.timeout` does. Its members are ended like those that
        lose a race. It is recorded before that, since a later run has to give it up again."""
        if self.is_left(asyncio.CancelledError()):
            await branches.ended()
        else:
            await self._end_members(branches, StepStatus.ABANDONED, cancel_steps=True, given_up=True)

    async def _wait_to_be_given_up(self, branches: Branches) -> NoReturn:
        """Goes the way that was taken before: nothing is run, until the code around gives the group up again."""
        branches.leave_out()
        await self.cancel_again(branches)
        self.remember(StepStatus.ABANDONED, **self._facts())
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nobody resolves it")

    async def decide(self, branches: Branches) -> Any:
        """Runs the members and answers for the group."""
        raise NotImplementedError

    def decided(self) -> int | None:
        """The member that decided the group, if it is recorded."""
        return None if self.record is None else self.record.facts.get("member")

    def is_left(self, error: BaseException) -> bool:
        """True if a member ended because the whole run is left, or this branch of it."""
        return isinstance(error, Unwind) or self.run.is_over or here(self).is_dropped

    def ends_with(self, error: BaseException) -> bool:
        """True for what is no failure of one member: the run is left, or the execution is to be cancelled."""
        return self.is_left(error) or isinstance(error, asyncio.CancelledError)

    async def leave(self, branches: Branches, error: BaseException, *, cancel_steps: bool) -> None:
        """Ends the other members. If the run is left they end by themselves, and what they wait for goes on."""
        if self.is_left(error):
            await branches.ended()
        else:
            await branches.drop(cancel_steps=cancel_steps)

    async def conclude(self, branches: Branches, index: int, status: StepStatus, *, cancel_steps: bool) -> None:
        """Ends the other members once one has decided the group. That is recorded before their children are cancelled
        and their waitpoints closed, and which these are: a later run must not take the end of one of them for what
        decided."""
        if self.decided() is not None:
            self.remember(status, **self._facts())
            return
        await self._end_members(branches, status, cancel_steps=cancel_steps, member=index)

    async def _end_members(self, branches: Branches, status: StepStatus, *, cancel_steps: bool, **why: Any) -> None:
        facts = await self._note(branches.open_children(), branches.open_waitpoints(), **why)
        await branches.drop(cancel_steps=cancel_steps)
        self.remember(status, **facts)

    async def _note(self, losers: Sequence[UUID], closed: Sequence[str], **why: Any) -> Mapping[str, Any]:
        """Records what decided the group before its other members are ended; answers what is recorded."""
        facts = {**why, "losers": [str(child) for child in losers], "closed": list(closed)}
        record = self.made.record(StepStatus.OPEN, **facts)
        if losers or closed:
            await self.run.commits.write(record)
        else:
            self.run.commits.ride(record)
        return facts

    async def cancel_again(self, branches: Branches) -> None:
        """Cancels what a run that was interrupted may not have got to."""
        if self.record is not None and not self.record.is_final:
            await branches.cancel_children([UUID(child) for child in self._facts().get("losers", ())])
            await branches.close_waitpoints(self._facts().get("closed", ()))

    def remember(self, status: StepStatus, **facts: Any) -> None:
        """Records with the next commit that the group was decided."""
        if self.record is None or not self.record.is_final:
            self.run.commits.ride(self.made.record(status, **facts))

    def _facts(self) -> Mapping[str, Any]:
        return {} if self.record is None else self.record.facts


class Gather(Group):
    """All of them, or the first failure."""

    async def decide(self, branches: Branches) -> Any:
        values: dict[int, Any] = {}
        await self.cancel_again(branches)
        async for index, ending in branches.endings(only=self.decided()):
            if ending.error is None:
                values[index] = ending.value
                continue
            await self._fail(branches, index, ending.error)
            raise ending.error
        if self.decided() is not None:
            why = "the branch that failed does not fail any more"
            self.run.calls.diverge(self.run.calls.journal.report(self.unit.scope, self.made, why))
        self.remember(StepStatus.OK)
        return tuple(values[index] for index in range(len(self.members)))

    async def _fail(self, branches: Branches, index: int, error: BaseException) -> None:
        if self.is_left(error):
            await branches.ended()
        elif self._is_settled(error):
            await self.conclude(branches, index, StepStatus.FAILED, cancel_steps=False)
        else:
            units = branches.units()
            await branches.let_go()
            self.run.calls.accidents.add(here(self), error, lambda: self._accept(branches, units, index))

    def _is_settled(self, error: BaseException) -> bool:
        is_known = self.decided() is not None or isinstance(error, asyncio.CancelledError)
        return is_known or is_final(error, self.run.task.settings.raises)

    async def _accept(self, branches: Branches, units: Sequence[Unit], index: int) -> None:
        """The function goes on after an accident of a member, so that has decided the group."""
        losers = [child for unit in units for child in unit.children]
        closed = [key for unit in units for key in unit.waitpoints]
        facts = await self._note(losers, closed, member=index)
        await branches.cancel_children(losers)
        await branches.close_waitpoints(closed)
        self.remember(StepStatus.FAILED, **facts)


class Tolerant(Group):
    """A group that goes on when a member fails."""

    def accidents(self, branches: Branches) -> dict[int, ErrorInfo]:
        """The accidents of branches that are recorded; these are not run again."""
        journal, found = self.run.calls.journal, dict[int, ErrorInfo]()
        for index in range(len(self.members)):
            record = journal.get(self._accident(index).path)
            if record is not None and record.kind == _ACCIDENT:
                branches.skip(index)
                found[index] = failures.from_json(record.facts["error"])
        return found

    async def failed(self, branches: Branches, index: int, error: BaseException) -> ErrorInfo:
        """How a member failed that does not decide the group. If nothing has recorded it, it is recorded here, since
        the function sees it; and what succeeded when the group ended does not fail later."""
        info = error.error if isinstance(error, StepFailed | ExecutionFailed) else failures.error_info(error)
        if not is_final(error, self.run.task.settings.raises):
            if self.record is not None and self.record.is_final:
                await branches.let_go()
                raise error
            said = failures.to_json(info)
            self.run.commits.ride(self._accident(index).record(StepStatus.FAILED, error=said))
        return info

    def _accident(self, index: int) -> Made:
        return Made(f"{self.path}[{index}]", self.made.scope, KEYED, _ACCIDENT)


class Settle(Tolerant):
    """Each for itself."""

    async def decide(self, branches: Branches) -> Any:
        accidents = self.accidents(branches)
        found: dict[int, Completed[Any] | Failed] = {index: Failed(info) for index, info in accidents.items()}
        async for index, ending in branches.endings():
            if ending.error is None:
                found[index] = Completed(ending.value)
                continue
            if self.ends_with(ending.error):
                await self.leave(branches, ending.error, cancel_steps=False)
                raise ending.error
            found[index] = Failed(await self.failed(branches, index, ending.error))
        self.remember(StepStatus.OK)
        return tuple(found[index] for index in range(len(self.members)))


class Race(Tolerant):
    """The first success."""

    async def decide(self, branches: Branches) -> Any:
        await self.cancel_again(branches)
        failed = self.accidents(branches)
        async for index, ending in branches.endings(only=self.decided()):
            if ending.error is None:
                await self.conclude(branches, index, StepStatus.OK, cancel_steps=True)
                return Winner(index, ending.value)
            if self.is_left(ending.error):
                await branches.ended()
                raise ending.error
            if isinstance(ending.error, asyncio.CancelledError):
                # It decides: another member may still succeed while it is ended, and must not win a later run.
                await self.conclude(branches, index, StepStatus.FAILED, cancel_steps=True)
                raise ending.error
            failed[index] = await self.failed(branches, index, ending.error)
        self.remember(StepStatus.OK)
        raise AllFailed([failed[index] for index in sorted(failed)])
