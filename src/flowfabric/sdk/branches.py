"""Branches of a group side by side: started up to a limit, told one after another how each ended, dropped if need be.

The branch that waits for a group rests meanwhile. A member that has ended counts as active until its group has seen
it, so that the run is never taken to be at rest between the two.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from flowfabric.core.errors import FlowFabricError, InvalidRequest
from flowfabric.sdk.bodies import Ending, start_branch, start_thread
from flowfabric.sdk.bridge import Thunk
from flowfabric.sdk.closing import close_waitpoints
from flowfabric.sdk.commits import persist
from flowfabric.sdk.durable import DurableCall, here
from flowfabric.sdk.errors import Unwind
from flowfabric.sdk.journal import Scope
from flowfabric.sdk.parking import Group, Together
from flowfabric.sdk.units import Unit

if TYPE_CHECKING:
    from flowfabric.sdk.run import Run

Member = DurableCall[Any] | Coroutine[Any, Any, Any] | Thunk[Any]


class Branches:
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
            self.run.resting.rests()
            yield index, self._complete(unit, future.result())

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
            future = start_thread(unit, member.fn)
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
        """A branch must have reached what was recorded in it, as the function must."""
        if ending.error is None and unit.scope is not self._parent.scope and not self.run.is_over:
            report = self.run.calls.journal.unreached(unit.scope)
            if report is not None:
                self.run.calls.diverge(report)
        return ending

    @property
    def are_open(self) -> bool:
        """True while there are members that have not ended."""
        return bool(self._waiting or self._running)

    async def drop(self, *, cancel_steps: bool) -> None:
        """Ends the members that are still running: nothing new happens in them. Steps that run are waited for, or
        cancelled; children are cancelled, waitpoints closed."""
        units = [unit for unit, _ in self._running.values()]
        for unit in units:
            unit.drop()
        children, waitpoints = self.open_children(), self.open_waitpoints()
        if cancel_steps:
            self.cancel_code()
        self.run.resting.drop()
        await self._to_the_end(self._drop(units, children, waitpoints))

    async def _drop(self, units: Sequence[Unit], children: Sequence[UUID], waitpoints: Collection[str]) -> None:
        await self.cancel_children(children)
        await self.close_waitpoints(waitpoints)
        await self._all_ended()
        # Those that were just being submitted are there only now.
        await self.cancel_children([child for unit in units for child in unit.children])

    async def let_go(self) -> None:
        """Ends the members that are still running, and nothing of what they wait for."""
        for unit, _ in self._running.values():
            unit.drop()
        self.run.resting.drop()
        await self.ended()

    async def ended(self) -> None:
        """Returns when every member that was started has ended."""
        await self._to_the_end(self._all_ended())

    async def _all_ended(self) -> None:
        self.leave_out()
        async for _ in self.endings():
            pass

    async def _to_the_end(self, ending: Coroutine[Any, Any, None]) -> None:
        """Whoever gives the group up while its members are being ended comes too late, but need not wait for code that
        runs."""
        task = self.run.loop.create_task(ending)
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                if task.cancelled():
                    raise Unwind from None
                self.cancel_code()

    def cancel_code(self) -> None:
        """Cancels what members are about: steps that run, and other code that awaits something of its own."""
        units = {unit for unit, _ in self._running.values()}
        steps = [(task, unit) for task, unit in self.run.in_flight.items() if unit in units]
        for task, _ in steps:
            task.cancel()
        for unit in units.difference((unit for _, unit in steps), self.run.resting.parked.values()):
            if unit.group is not None:
                unit.group.cancel_code()
            elif unit.task is not None and not unit.is_plain:
                unit.task.cancel()

    def open_children(self) -> list[UUID]:
        """The children that members wait for."""
        return [child for unit, _ in self._running.values() for child in unit.children]

    def open_waitpoints(self) -> list[str]:
        """The keys of the waitpoints that are there for members alone."""
        return [key for unit, _ in self._running.values() for key in unit.waitpoints]

    async def close_waitpoints(self, keys: Collection[str]) -> None:
        """Closes what members wait at: what comes there would be lost."""
        await close_waitpoints(self.run, keys, f"{self._group.path} has ended")

    async def cancel_children(self, children: Sequence[UUID]) -> None:
        """Cancels what members wait for; who has ended meanwhile has ended."""
        reason = f"{self._group.path} has ended"
        for child in children:
            with suppress(FlowFabricError):
                await persist(self.run, partial(self.run.engine.operator.cancel, child, reason, children=True))

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
    """Nobody awaits this member."""
    if isinstance(member, DurableCall):
        member.is_awaited = True
    elif not isinstance(member, Thunk):
        member.close()


async def _outcome(member: DurableCall[Any]) -> Ending:
    try:
        return Ending(await member)
    except BaseException as error:
        return Ending(error=error)
