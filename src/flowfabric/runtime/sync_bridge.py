"""Plain functions. Their durable calls run on the worker's loop, and their branches hold no thread while they wait.

If a branch waits while others are active, the exception `Unwind` ends its code and frees its thread. The same happens
to every branch when a run is suspended.
The call that the branch waits for continues on the loop. When the call has ended, the code of the branch runs again
from its top, in any free thread, and finds the outcome of the call in the journal. Each such stretch is a segment.

A segment never unwinds at the call at which the previous segment unwound, only at later calls. If it could unwind
there again, the code might never see a group's failure that is not recorded.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine
from concurrent.futures import Future
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from flowfabric.core.errors import InvalidRequest
from flowfabric.runtime.branch import BRANCH, STEP, Branch, BranchResult, branch_result, run_in_thread
from flowfabric.runtime.durable_call import DurableCall
from flowfabric.runtime.journal import Scope
from flowfabric.store.forks import check_not_forked
from flowfabric.values.errors import Unwind
from flowfabric.values.guards import is_a

LOG = logging.getLogger("flowfabric")
MAX_SWALLOWED = 100


class ThreadSegment:
    """One segment of a branch, from the top of its code until it ends or leaves its thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, after: int = 0) -> None:
        self._loop = loop
        self._replayed_calls = after
        self._reply: Future[BranchResult] | None = None
        self._call_task: asyncio.Task[BranchResult] | None = None
        self._swallowed = 0
        self.calls = 0
        self.has_unwound = False
        self.durable_calls: list[DurableCall[Any]] = []
        self.ended: asyncio.Future[BranchResult] = loop.create_future()

    @property
    def is_replaying(self) -> bool:
        """True while the code repeats calls of an earlier segment."""
        return self.calls < self._replayed_calls

    def run_call(self, call: Coroutine[Any, Any, BranchResult]) -> BranchResult:
        """Run a call on the loop while this thread waits, and return how the call ended, possibly with `Unwind`."""
        self.calls += 1
        self._reply = reply = Future[BranchResult]()
        self._loop.call_soon_threadsafe(self._start_call, call, reply)
        return reply.result()

    def _start_call(self, call: Coroutine[Any, Any, BranchResult], reply: Future[BranchResult]) -> None:
        self._call_task = self._loop.create_task(call)
        self._call_task.add_done_callback(partial(_set_reply, reply))

    def unwind(self) -> None:
        """Make the code leave its thread, if it waits for a call that no earlier segment has reached."""
        if self._reply is not None and not self._reply.done() and self.calls > self._replayed_calls:
            self.has_unwound = True
            self._reply.set_result(BranchResult(error=Unwind()))

    async def wait_call(self) -> None:
        """Wait until the call at which the segment unwound has ended."""
        assert self._call_task is not None, "a segment unwinds only while a call runs"
        await asyncio.wait([self._call_task])

    def unwind_again(self) -> Unwind:
        """Return `Unwind` again for code that caught it and continued. If the code never stops, abandon its thread."""
        self._swallowed += 1
        if self._swallowed >= MAX_SWALLOWED:
            LOG.error("A branch keeps swallowing Unwind, and its thread is abandoned; let BaseException pass")
            threading.current_thread().name = "flowfabric-forsaken"
            self.end(BranchResult(error=Unwind()))
            threading.Event().wait()
        return Unwind()

    def end(self, ending: BranchResult) -> None:
        """Report to the loop how the code ended. The thread of the code calls this."""
        self._loop.call_soon_threadsafe(self._end, ending)

    def _end(self, ending: BranchResult) -> None:
        if not self.ended.done():
            self.ended.set_result(ending)


def _set_reply(reply: Future[BranchResult], task: asyncio.Task[BranchResult]) -> None:
    if not reply.done():
        reply.set_result(branch_result(task))


async def run_in_segments(branch: Branch, body: Callable[[], Any]) -> BranchResult:
    """Run a plain function as a branch. After each wait at which it left its thread, run it again, until it ends."""
    segment = await _run_segment(branch, body, after=0)
    while segment.has_unwound:
        await segment.wait_call()
        if not _is_over(branch):
            _reset_branch(branch, segment)
        segment = await _run_segment(branch, body, after=segment.calls)
    branch.segment = None  # The segment's call refers to the branch, so this breaks a cycle.
    return segment.ended.result()


async def _run_segment(branch: Branch, body: Callable[[], Any], *, after: int) -> ThreadSegment:
    """Run one segment of the branch in a thread, and return the segment when it has ended."""
    branch.segment = segment = ThreadSegment(branch.run.loop, after)
    if _is_over(branch):
        segment.ended.set_result(BranchResult(error=Unwind()))
        return segment
    work = branch.run.threads.branches(branch.depth).submit(Context().run, _run_body, branch, segment, body)
    try:
        ending = await segment.ended
    except asyncio.CancelledError:
        branch.run.leave_code(work)
        raise
    if segment.has_unwound and not is_a(ending.error, Unwind) and not _is_over(branch):
        branch.run.calls.warn_swallowed()
    return segment


def _run_body(branch: Branch, segment: ThreadSegment, body: Callable[[], Any]) -> None:
    # The branch may have been dropped while it waited for a thread.
    segment.end(BranchResult(error=Unwind()) if _is_over(branch) else run_in_thread(branch, body))


def _is_over(branch: Branch) -> bool:
    return branch.run.is_over or branch.is_dropped


def _reset_branch(branch: Branch, segment: ThreadSegment) -> None:
    """Forget the calls of the segment, because the code will make the same calls again."""
    branch.scope = Scope(branch.scope.prefix)
    branch.run.calls.unrecorded_failures.discard(branch)
    for call in segment.durable_calls:
        call.is_awaited = True


def leave_threads(parked: Collection[Branch]) -> None:
    """Make waiting branches leave their threads, and also branches that await a group in which every member waits."""
    idle = level = set(parked)
    while level:
        for branch in level:
            if branch.segment is not None:
                branch.segment.unwind()
        parents = {branch.parent for branch in level if branch.parent is not None} - idle
        level = {
            branch
            for branch in parents
            if branch.group is not None and idle.issuperset(branch.group.running_branches())
        }
        idle = idle | level


# Durable calls of plain functions are made in the thread of the task, and run on the worker's loop.


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Thunk(Generic[T]):
    """A plain function that becomes a branch of a group."""

    fn: Callable[[], T]


def make_branch(thunk: Callable[[], T]) -> Any:
    """Return a plain function as a branch of a group.

    If the function is `handle.result`, return the handle instead. The group then waits for the handle's execution
    without a thread.
    """
    if not callable(thunk):
        message = f"a branch is a function without arguments, not {type(thunk).__name__}; write lambda: sync.step(…)"
        raise InvalidRequest("invalid_type", message)
    handle: Any = getattr(thunk, "__self__", None)
    return handle if hasattr(handle, "__durable_call__") and thunk == handle.result else Thunk(thunk)


def call(make: Callable[[], Awaitable[T]]) -> T:
    """Make a durable call, wait in this thread until the call has ended, and return its value."""
    branch = _require_plain_branch()
    awaitable = call_plain(make)
    performing = _await_call(branch, awaitable)
    if branch.segment is not None:
        ending = branch.segment.run_call(performing)
    else:
        ending = asyncio.run_coroutine_threadsafe(performing, branch.run.loop).result()
    if ending.error is not None:
        raise ending.error
    value: T = ending.value
    return value


def call_plain(make: Callable[[], T]) -> T:
    """Call `make` in this thread and return its value, without waiting for a durable call that it returns."""
    if STEP.get() is not None:
        return make()  # Steps may call `progress`. All other calls refuse to be made in a step.
    branch = _require_plain_branch()
    branch.is_bridging = True
    try:
        value = make()
    finally:
        branch.is_bridging = False
    if branch.segment is not None and isinstance(value, DurableCall):
        branch.segment.durable_calls.append(value)
    return value


def _require_plain_branch() -> Branch:
    branch = BRANCH.get()
    if branch is None:
        raise InvalidRequest("outside_of_task", "durable calls work only inside a task")
    check_not_forked(branch.run.forks)
    if STEP.get() is not None:
        raise InvalidRequest("durable_call_in_step", "a step cannot contain durable calls; call the function directly")
    if not branch.is_plain:
        raise InvalidRequest(
            "sync_call_in_async_task", "this task is a coroutine function; await the call from flowfabric"
        )
    if branch.segment is not None and branch.segment.has_unwound:
        raise branch.segment.unwind_again()
    return branch


async def _await_call(branch: Branch, awaitable: Awaitable[Any]) -> BranchResult:
    branch.task = asyncio.current_task()
    try:
        return BranchResult(await awaitable)
    except BaseException as error:
        return BranchResult(error=error)
