"""Branches of a group side by side: started up to a limit, and told one after another how each ended.

The branch that waits for a group rests meanwhile. A member that has ended counts as active until its group has seen
it, so that the run is never taken to be at rest between the two.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from flowfabric.core.errors import InvalidRequest
from flowfabric.sdk.bodies import Ending, ending_of, start_branch
from flowfabric.sdk.bridge import Thunk
from flowfabric.sdk.durable import DurableCall, here
from flowfabric.sdk.errors import Unwind
from flowfabric.sdk.journal import Scope
from flowfabric.sdk.parking import Group, Together
from flowfabric.sdk.stays import stay_by_stay
from flowfabric.sdk.units import Unit

if TYPE_CHECKING:
    from flowfabric.sdk.run import Run

Member = DurableCall[Any] | Coroutine[Any, Any, Any] | Thunk[Any]


class Running:
    """The members of one group being run."""

    def __init__(self, group: DurableCall[Any], members: Sequence[Member], limit: int | None) -> None:
        self._group, self._members, self._limit = group, members, limit
        self._parent = here(group)
        self._waiting = deque(range(len(members)))
        self._running: dict[int, tuple[Unit, asyncio.Future[Ending]]] = {}
        self._ended: deque[int] = deque()
        self._bell: asyncio.Future[None] | None = None
        self._together = None if limit is not None else Group(Together(group.made.kind))

    @property
    def run(self) -> Run:
        return self._group.run

    async def endings(self, only: int | None = None) -> AsyncIterator[tuple[int, Ending]]:
        """How each member ended, in the order of their ends; with `only`, nothing but that one is run."""
        if only is not None:
            self.leave_out(but=only)
        async for item in self._answered():
            yield item
        while self._waiting or self._running:
            while self._waiting and (self._limit is None or len(self._running) < self._limit):
                self._start(self._waiting.popleft())
            index = await self._next_ended()
            unit, future = self._running.pop(index)
            unit.task = None  # Its context knows the unit, which would make a circle.
            self.run.resting.rests()
            yield index, self._complete(unit, ending_of(future))

    async def _answered(self) -> AsyncIterator[tuple[int, Ending]]:
        """Members that the journal answers need no branch of their own."""
        for index in tuple(self._waiting):
            member = self._members[index]
            if isinstance(member, DurableCall) and member.is_answered:
                self._waiting.remove(index)
                yield index, await _outcome(member)

    def _start(self, index: int) -> None:
        member = self._members[index]
        is_call = isinstance(member, DurableCall)
        scope = self._parent.scope if is_call else Scope(f"{self._group.path}[{index}]/")
        unit = Unit(self.run, scope, self._parent, is_plain=isinstance(member, Thunk))
        unit.together = self._together if is_call else None
        unit.race = self if is_call and self._group.made.kind == "race" else None
        self.run.resting.goes()
        future: asyncio.Future[Ending]
        if isinstance(member, Thunk):
            future = self.run.loop.create_task(stay_by_stay(unit, member.fn))
        else:
            coroutine = member
            future = start_branch(unit, lambda: coroutine)
        self._running[index] = unit, future
        future.add_done_callback(lambda _: self._ring(index))

    def _ring(self, index: int) -> None:
        self._ended.append(index)
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)

    async def _next_ended(self) -> int:
        """The next member that has ended; the group's own branch rests until there is one."""
        if not self._ended:
            self._bell = self.run.loop.create_future()
            self.run.resting.rests()
            try:
                await self._bell
            finally:
                self.run.resting.goes()
        return self._ended.popleft()

    def _complete(self, unit: Unit, ending: Ending) -> Ending:
        """A branch must have reached what was recorded in it, as the function must. Once somebody was told to leave,
        nothing is decided any more: what a branch comes to may be due to that."""
        if self.run.calls.has_told and not isinstance(ending.error, Unwind):
            return Ending(error=Unwind())
        if ending.error is not None:
            unit.drop()
        elif unit.scope is not self._parent.scope and not self.run.is_over:
            report = self.run.calls.journal.unreached(unit.scope)
            if report is not None:
                self.run.calls.diverge(report)
        return ending

    def skip(self, index: int) -> None:
        """Does not run this member; it counts as awaited."""
        self._waiting.remove(index)
        leave_out(self._members[index])

    def leave_out(self, but: int | None = None) -> None:
        """Members that were not started will not be; they count as awaited."""
        for index in self._waiting:
            if index != but:
                leave_out(self._members[index])
        self._waiting = deque(() if but is None else (but,))

    @property
    def are_open(self) -> bool:
        """True while there are members that have not ended."""
        return bool(self._waiting or self._running)


def checked_members(calls: Sequence[Any]) -> list[Member]:
    """What a group takes: durable calls, handles, coroutines of the user's own, and branches of plain functions."""
    from flowfabric.sdk.children import await_result
    from flowfabric.sdk.handles import Handle

    found: list[Member] = []
    for call in calls:
        if isinstance(call, Handle):
            awaited = await_result(call, None)
            assert isinstance(awaited, DurableCall), "inside of a task it is a durable call"
            found.append(awaited)
        elif isinstance(call, DurableCall | Thunk | Coroutine):
            found.append(call)
        else:
            message = f"a group takes durable calls, handles and coroutines, not {type(call).__name__}"
            raise InvalidRequest("invalid_type", message)
    return found


def leave_out(member: Member) -> None:
    """Nobody awaits this member, nor what it is made of."""
    if isinstance(member, DurableCall):
        member.is_awaited = True
        for inner in member.members:
            leave_out(inner)
    elif not isinstance(member, Thunk):
        member.close()


async def _outcome(member: DurableCall[Any]) -> Ending:
    try:
        return Ending(await member)
    except BaseException as error:
        return Ending(error=error)
