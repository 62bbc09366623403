"""Plain functions as branches of a group: in a thread while their code runs, and in none while they wait.

A branch that waits beside others that are active is told to leave by `Unwind`, as every branch is when a whole run is
suspended. The call that it waits in is performed to its end on the loop. Then the code is run again from its top, in
any thread that is free, and finds recorded what it waited for.

A stay leaves after the call at which the one before it left, never at it: what is not recorded, as an accident in a
group, is told to the code the second time.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Future
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any

from flowfabric.sdk.bodies import Ending, ending_of, returned
from flowfabric.sdk.errors import Unwind
from flowfabric.sdk.journal import Scope

if TYPE_CHECKING:
    from flowfabric.sdk.durable import DurableCall
    from flowfabric.sdk.units import Unit

LOG = logging.getLogger("flowfabric")
_MOST_SWALLOWED = 100


class Stay:
    """One stay of a branch in a thread, and the call that the thread waits for."""

    def __init__(self, loop: asyncio.AbstractEventLoop, after: int = 0) -> None:
        self._loop = loop
        self._after = after
        self._told: Future[Ending] | None = None
        self._performing: asyncio.Task[Ending] | None = None
        self._swallowed = 0
        self.calls = 0
        self.has_left = False
        self.made: list[DurableCall[Any]] = []
        self.ended: asyncio.Future[Ending] = loop.create_future()

    @property
    def is_repeat(self) -> bool:
        """True while the code comes by calls that an earlier stay has made."""
        return self.calls < self._after

    def perform(self, call: Coroutine[Any, Any, Ending]) -> Ending:
        """How a call ended that is performed on the loop, or that the branch is to leave; the thread waits for it."""
        self.calls += 1
        self._told = told = Future[Ending]()
        self._loop.call_soon_threadsafe(self._perform, call, told)
        return told.result()

    def _perform(self, call: Coroutine[Any, Any, Ending], told: Future[Ending]) -> None:
        self._performing = self._loop.create_task(call)
        self._performing.add_done_callback(partial(_tell, told))

    def leave(self) -> None:
        """Has the code leave its thread, if it waits for a call that no stay has left at before."""
        if self._told is not None and not self._told.done() and self.calls > self._after:
            self.has_left = True
            self._told.set_result(Ending(error=Unwind()))

    async def performed(self) -> None:
        """Returns when the call has ended that was left."""
        assert self._performing is not None, "it is left only while a call is performed"
        await asyncio.wait([self._performing])

    def leave_again(self) -> Unwind:
        """What is raised in code that goes on after it was told to leave. If it never does, it is left alone: the
        thread waits for ever, and counts as ended."""
        self._swallowed += 1
        if self._swallowed >= _MOST_SWALLOWED:
            LOG.error("a branch swallows Unwind for ever, and its thread is dropped; let BaseException pass")
            threading.current_thread().name = "flowfabric-forsaken"
            self.end(Ending(error=Unwind()))
            threading.Event().wait()
        return Unwind()

    def end(self, ending: Ending) -> None:
        """Tells, from its thread, how the code was left."""
        self._loop.call_soon_threadsafe(self._end, ending)

    def _end(self, ending: Ending) -> None:
        if not self.ended.done():
            self.ended.set_result(ending)


def _tell(told: Future[Ending], task: asyncio.Task[Ending]) -> None:
    if not told.done():
        told.set_result(ending_of(task))


async def stay_by_stay(unit: Unit, body: Callable[[], Any]) -> Ending:
    """Runs a plain function as a branch, again after each of its waits, until it has come to its end."""
    stay = await _stay(unit, body, after=0)
    while stay.has_left:
        await stay.performed()
        if not _is_left(unit):
            _begin_anew(unit, stay)
        stay = await _stay(unit, body, after=stay.calls)
    unit.stay = None  # Its call knows the unit, which would make a circle.
    return stay.ended.result()


async def _stay(unit: Unit, body: Callable[[], Any], *, after: int) -> Stay:
    """One stay, which has ended."""
    unit.stay = stay = Stay(unit.run.loop, after)
    if _is_left(unit):
        stay.ended.set_result(Ending(error=Unwind()))
        return stay
    unit.run.threads.branches(unit.depth).submit(Context().run, _run, unit, stay, body)
    ending = await stay.ended
    if stay.has_left and not isinstance(ending.error, Unwind) and not _is_left(unit):
        unit.run.calls.note_swallowed()
    return stay


def _run(unit: Unit, stay: Stay, body: Callable[[], Any]) -> None:
    # It may have waited for a thread until nobody had any use for it.
    stay.end(Ending(error=Unwind()) if _is_left(unit) else returned(unit, body))


def _is_left(unit: Unit) -> bool:
    return unit.run.is_over or unit.is_dropped


def _begin_anew(unit: Unit, left: Stay) -> None:
    """Forgets what the code has made of the calls that it will make again."""
    unit.scope = Scope(unit.scope.prefix)
    unit.run.calls.accidents.forget(unit)
    for call in left.made:
        call.is_awaited = True


def leave_threads(parked: Collection[Unit]) -> None:
    """Has branches leave their threads that wait while others do not: those that are parked, and those with a group of
    which every member is."""
    resting = level = set(parked)
    while level:
        for unit in level:
            if unit.stay is not None:
                unit.stay.leave()
        around = {unit.parent for unit in level if unit.parent is not None} - resting
        level = {unit for unit in around if unit.group is not None and resting.issuperset(unit.group.units())}
        resting = resting | level
