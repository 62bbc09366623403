"""Branches: the lines of execution of a task, and the branch or step that the running code is in.

A branch is the task's function, or one member of a group. It makes its durable calls one after another, so their order
never depends on timing. A branch is active while its code runs, and idle while it waits. When no branch of a run is
active, the run can be suspended.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from contextvars import Context, ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from flowfabric.core.errors import InvalidRequest
from flowfabric.core.fast_dataclass import record
from flowfabric.runtime.journal import CallId, Record, Scope
from flowfabric.runtime.log import LOG, log_fields
from flowfabric.store.forks import Forks, call_after_fork, check_not_forked
from flowfabric.values.errors import InputMismatch
from flowfabric.values.placeholders import ENCODING

if TYPE_CHECKING:
    from flowfabric.runtime.branch_group import BranchGroup
    from flowfabric.runtime.run import TaskRun
    from flowfabric.runtime.sync_bridge import ThreadSegment
    from flowfabric.runtime.waits import WaitGroup


class Branch:
    """One line of execution of a run, with the scope of its calls."""

    __slots__ = (
        "_is_dropped", "children", "group", "is_bridging", "is_plain", "parent", "race", "run", "scope", "segment",
        "task", "thread", "wait_group", "waitpoints",
    )  # fmt: skip

    def __init__(self, run: TaskRun, scope: Scope, parent: Branch | None = None, *, is_plain: bool = False) -> None:
        self.run = run
        self.scope = scope
        self.parent = parent
        self.is_plain = is_plain
        self.is_bridging = False
        self.wait_group: WaitGroup | None = None
        self.race: BranchGroup | None = None
        self.group: BranchGroup | None = None
        self.segment: ThreadSegment | None = None
        self._is_dropped = False
        self.task: asyncio.Task[Any] | None = None
        self.thread: int | None = None
        self.children: set[UUID] = set()
        self.waitpoints: set[str] = set()

    @property
    def is_dropped(self) -> bool:
        """True once the group of this branch, or of an outer branch, no longer needs the branch."""
        return self._is_dropped or (self.parent is not None and self.parent.is_dropped)

    @property
    def is_replaying(self) -> bool:
        """True while the code of this branch only repeats recorded calls."""
        return self.run.calls.is_replaying or (self.segment is not None and self.segment.is_replaying)

    @property
    def depth(self) -> int:
        """The number of groups around this branch."""
        return 0 if self.parent is None else self.parent.depth + 1

    def add_child(self, child: UUID) -> None:
        """Note, in this branch and its parent branches, a child execution that this branch waits for."""
        self.children.add(child)
        if self.parent is not None:
            self.parent.add_child(child)

    def remove_child(self, child: UUID) -> None:
        """Remove a child that has ended from this branch and its parent branches."""
        self.children.discard(child)
        if self.parent is not None:
            self.parent.remove_child(child)

    def add_waitpoints(self, waitpoints: Collection[str]) -> None:
        """Note the keys of waitpoints that were opened only for this branch."""
        self.waitpoints.update(waitpoints)
        if self.parent is not None:
            self.parent.add_waitpoints(waitpoints)

    def remove_waitpoints(self, waitpoints: Collection[str]) -> None:
        """Forget the keys of waitpoints at which this branch no longer waits."""
        self.waitpoints.difference_update(waitpoints)
        if self.parent is not None:
            self.parent.remove_waitpoints(waitpoints)

    def drop(self) -> None:
        """Stop durable calls in this branch and in the branches inside it."""
        self._is_dropped = True

    def match_next(
        self, name: str, kind: str, *, key: str | None = None, digest: str | None = None
    ) -> tuple[CallId, Record | None]:
        """Return the identity of the next call, and the record of that call, or None if it is not recorded."""
        self.run.calls.check_alive(self)
        if self.scope.failures:
            self.scope.raise_recorded()
        return self.run.calls.match(self.scope, self.scope.next(name, kind, key=key, digest=digest))

    def check_caller(self) -> None:
        """Raise unless the durable call is made in the asyncio task or thread of this branch."""
        if self.is_plain:
            if threading.get_ident() != self.thread:
                raise _other_thread_error()
            if not self.is_bridging:
                message = "this task is a plain function; use flowfabric.sync, for example flowfabric.sync.step"
                raise InvalidRequest("async_call_in_plain_task", message)
        elif _running_task() is not self.task:
            message = (
                "durable calls in your own asyncio task would be numbered by chance; make them in the function and "
                "await them where you like, or pass the coroutine to flowfabric.gather, settle or race"
            )
            raise InvalidRequest("durable_call_in_raw_task", message)


def _running_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        # No event loop runs in this thread: for example, the task's function has started the thread itself.
        raise _other_thread_error() from None


def _other_thread_error() -> InvalidRequest:
    message = "only the thread that runs the task makes durable calls; return to it first"
    return InvalidRequest("durable_call_in_raw_thread", message)


class StepContext:
    """The running step.

    It gives client calls inside the step their idempotency keys, so that a retry repeats these calls harmlessly. The
    thread of a step cannot be stopped. `is_abandoned` is True once the result of the step is no longer needed.
    """

    __slots__ = ("_uses", "is_abandoned", "path", "run")

    def __init__(self, run: TaskRun, path: str) -> None:
        self.run = run
        self.path = path
        self.is_abandoned = False
        self._uses = 0

    @property
    def key(self) -> str:
        """The idempotency key of this step, which is the same in every try.

        After a replay or `continue_with`, the step has a different key, so its effect is repeated.
        """
        lease = self.run.lease
        turn = f"@{lease.generation}" if lease.generation else ""
        return f"{lease.execution_id}{turn}/{self.path}"

    def idempotency_key(self, verb: str) -> str:
        """Return the idempotency key of the next client call in this step."""
        self._uses += 1
        return f"{self.key}/{verb}#{self._uses}"


@dataclass(slots=True)
class RunningStep:
    """A step whose function runs. `can_interrupt` is True if a request to cancel may end it at its await.

    `is_interrupted` is True once such a request was sent to its code.
    """

    branch: Branch
    can_interrupt: bool
    is_interrupted: bool = False


BRANCH: ContextVar[Branch | None] = ContextVar("flowfabric_unit", default=None)
STEP: ContextVar[StepContext | None] = ContextVar("flowfabric_step", default=None)


def current_branch() -> Branch | None:
    """Return the branch that the running code is in, or None outside of tasks.

    Raise where durable calls are not allowed.
    """
    branch = BRANCH.get()
    if branch is None:
        return None
    if Forks.number != branch.run.forks:
        check_not_forked(branch.run.forks)
    if STEP.get() is not None:
        message = "a step cannot contain durable calls; call the function directly"
        raise InvalidRequest("durable_call_in_step", message)
    branch.check_caller()
    return branch


def require_branch(what: str) -> Branch:
    """Return the current branch, or raise outside of tasks."""
    branch = current_branch()
    if branch is None:
        raise InvalidRequest("outside_of_task", f"{what} works only inside a task")
    return branch


# The body of a task runs as a coroutine on the worker's loop, or as a plain function in one of the worker's threads.


Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]


@record(frozen=True, slots=True)
class BranchResult:
    """How a body or branch ended: with a value, or with an error."""

    value: Any = None
    error: BaseException | None = None


class BodyLeft(BaseException):
    """Ends the asyncio task of a run whose rest runs in another task, because the body had been cut off."""


class RunTask(asyncio.Task[None]):
    """The asyncio task of a run that a worker starts. The body of an async function runs in it too.

    `take_over` gets the rest of a run whose body does not leave the task.
    """

    __slots__ = ("_run", "_take_over", "is_cancelled")

    def __init__(
        self,
        work: Coroutine[Any, Any, None],
        loop: asyncio.AbstractEventLoop,
        take_over: Callable[[Coroutine[Any, Any, bool]], None],
    ) -> None:
        self._run: TaskRun | None = None
        self._take_over = take_over
        self.is_cancelled = False
        # A run must not inherit context variables from the code that happened to claim it.
        super().__init__(work, loop=loop, context=Context())

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the body while it runs, as timeouts of the user do, and otherwise the whole run."""
        # No loop runs in this thread while its runner closes it and cancels all tasks.
        if self._run is None or asyncio._get_running_loop() is None:
            self.cancel_run()
            return True
        return super().cancel(msg)

    def cancel_run(self) -> None:
        """Cancel the whole run."""
        self.is_cancelled = True
        if self._run is not None:
            self._run.abandon()
        self.cancel_body()

    def cancel_body(self) -> None:
        """Cancel the code of the body, but not its run."""
        super().cancel()

    async def run_body(
        self, run: TaskRun, branch: Branch, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> BranchResult:
        """Run the task's function in this asyncio task, and return how it ended."""
        self._run, branch.task = run, self
        token = BRANCH.set(branch)
        try:
            ending = BranchResult(await run.task.fn(*args, **kwargs))
        except BaseException as error:
            ending = BranchResult(error=error)
        finally:
            run.exit_if_forked()
        BRANCH.reset(token)
        branch.task = None
        if self._run is None:
            raise BodyLeft
        self._run = None
        if self.cancelling():
            ending = await self._end_cancel(ending)
        return ending

    def leave_body(self) -> None:
        """Let another asyncio task do the rest of the run, unless the body has ended."""
        run, self._run = self._run, None
        if run is not None:
            run.leave_code(self)
            self._take_over(run.run(is_cut_off=True))

    async def _end_cancel(self, ending: BranchResult) -> BranchResult:
        """Raise if the run was cancelled. Otherwise forget that the body was cancelled, since the run continues."""
        while self.uncancel():
            pass
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError as error:
            ending = BranchResult(error=error)  # The body returned before a cancel reached it.
        if self.is_cancelled:
            raise asyncio.CancelledError
        return ending


def cancel_code_in(task: asyncio.Task[Any]) -> None:
    """Cancel the code of a body, branch or step that runs in this asyncio task."""
    cancel = task.cancel_body if isinstance(task, RunTask) else task.cancel
    cancel()


async def run_body(run: TaskRun, branch: Branch) -> BranchResult:
    """Run the task's function from its top, and return how it ended."""
    try:
        args, kwargs = await _arguments(run)
    except InputMismatch as error:
        run.mismatch = error
        return BranchResult()
    if run.is_over:
        return BranchResult()
    task = asyncio.current_task()
    if isinstance(task, RunTask) and run.task.is_async:
        return await task.run_body(run, branch, args, kwargs)
    body = _start_body(run, branch, args, kwargs)
    ended = run.dropped = run.loop.create_future()
    body.add_done_callback(lambda _: _set_done(ended))
    try:
        await ended
    except asyncio.CancelledError:
        # The worker has cancelled the run, so the body must end too.
        run.abandon()
        raise
    if not body.done():
        run.leave_code(body)
        return BranchResult()
    branch.task = None
    return branch_result(body)


def branch_result(body: asyncio.Future[BranchResult]) -> BranchResult:
    """Return how a body or branch ended. One that was cancelled before it started has ended with `CancelledError`."""
    return BranchResult(error=asyncio.CancelledError()) if body.cancelled() else body.result()


def drop_body(run: TaskRun, branch: Branch) -> None:
    """Stop waiting for a body that does not unwind."""
    if run.dropped is not None:
        run.loop.call_soon_threadsafe(_set_done, run.dropped)
    elif isinstance(branch.task, RunTask):
        run.loop.call_soon_threadsafe(branch.task.leave_body)


def cancel_code(run: TaskRun, branches: set[Branch], *, let_finish: bool = False) -> None:
    """Cancel the running steps of `branches`, and all other code in these branches that awaits something.

    Do not cancel branches in a durable wait, nor the caller of this function: they unwind at their durable call. With
    `let_finish`, also leave the steps that a request to cancel must not interrupt.
    """
    busy = {*run.in_flight, asyncio.current_task()}
    for task, step in list(run.in_flight.items()):
        if step.branch in branches and (step.can_interrupt or not let_finish):
            cancel_code_in(task)
    for branch in branches.difference(run.suspender.waiting.values()):
        if branch.group is not None:
            branch.group.cancel_code(let_finish=let_finish)
        elif branch.task is not None and branch.task not in busy and not branch.is_plain:
            cancel_code_in(branch.task)


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def start_branch(branch: Branch, body: Coroutine[Any, Any, BranchResult]) -> asyncio.Task[BranchResult]:
    """Start a coroutine as a branch, in a new asyncio task."""
    context = Context()
    context.run(BRANCH.set, branch)
    branch.task = branch.run.loop.create_task(body, context=context)
    return branch.task


def _start_body(
    run: TaskRun, branch: Branch, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> asyncio.Future[BranchResult]:
    if run.task.is_async:
        return start_branch(branch, _run_function(run.task.fn, args, kwargs))
    work = run.threads.tasks.submit(Context().run, run_in_thread, branch, lambda: run.task.fn(*args, **kwargs))
    return asyncio.wrap_future(work)


async def _run_function(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> BranchResult:
    try:
        return BranchResult(await fn(*args, **kwargs))
    except BaseException as error:
        return BranchResult(error=error)
    finally:
        _exit_if_forked()


async def await_result(awaitable: Awaitable[Any]) -> BranchResult:
    """Await a call or coroutine, and return how it ended."""
    try:
        return BranchResult(await awaitable)
    except BaseException as error:
        return BranchResult(error=error)
    finally:
        _exit_if_forked()


def run_in_thread(branch: Branch, body: Callable[[], Any]) -> BranchResult:
    """Run a plain function in this thread, and return how it ended."""
    BRANCH.set(branch)
    branch.thread = threading.get_ident()
    try:
        return BranchResult(body())
    except BaseException as error:
        return BranchResult(error=error)
    finally:
        _exit_if_forked()


def _exit_if_forked() -> None:
    branch = BRANCH.get()
    if branch is not None:
        branch.run.exit_if_forked()


def _exit_soon_if_forked() -> None:
    """Let a forked process exit if it awaits instead of returning, and so gives control to the loop of its parent."""
    branch = BRANCH.get()
    if branch is not None and branch.task is not None and not branch.task.get_loop().is_closed():
        branch.task.get_loop().call_soon(_exit_if_forked)


call_after_fork(_exit_soon_if_forked)


async def _arguments(run: TaskRun) -> Arguments:
    """Return the stored arguments. In a flow's member, they include the results of its upstream members."""
    if run.lease.encoding != ENCODING:
        return run.task.inputs.unpack(run.lease.payload)
    from flowfabric.runtime.flow_inputs import resolve_inputs

    return await resolve_inputs(run)


# Raw tasks are asyncio tasks that a body starts. If the worker has its own loop, they are cancelled when the body
# ends, since their results would be lost and they can make no durable calls. On the user's loop they continue.
_PACKAGE = str(Path(__file__).parent.parent)
_CANCEL_TIMEOUT_S = 1.0
_MAX_NAMES = 5


def track_raw_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Make the loop keep a list of the asyncio tasks that each body starts."""
    loop.set_task_factory(_create_task)


def _create_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
    branch = BRANCH.get()
    if branch is not None and STEP.get() is None and not _is_ours(coroutine):
        # Ignore asyncio tasks that the store's libraries start, which may serve other callers than this body.
        raw, parent = branch.run.raw_tasks, asyncio.current_task(loop)
        if parent is branch.task or parent in raw:
            raw.add(task)
            task.add_done_callback(raw.discard)
    return task


def _is_ours(coroutine: Any) -> bool:
    code = getattr(coroutine, "cr_code", None)
    return code is not None and code.co_filename.startswith(_PACKAGE)


async def cancel_raw_tasks(run: TaskRun) -> None:
    """Cancel and report the asyncio tasks that a body left behind."""
    tasks = set(run.raw_tasks)
    if not tasks:
        return
    names, fields = sorted(_task_name(task) for task in tasks), log_fields(run.lease)
    shown = ", ".join(names[:_MAX_NAMES]) + (f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else "")
    message = "%s left asyncio tasks behind, which are cancelled: %s; await the tasks you start"
    LOG.warning(message, run.task.name, shown, extra=fields)
    for task in tasks:
        task.cancel()
    _, stubborn = await asyncio.wait(tasks, timeout=_CANCEL_TIMEOUT_S)
    for task in stubborn:
        message = "%s left an asyncio task behind that cannot be cancelled: %s"
        LOG.error(message, run.task.name, _task_name(task), extra=fields)


def _task_name(task: asyncio.Task[Any]) -> str:
    coroutine = task.get_coro()
    return getattr(coroutine, "__qualname__", None) or getattr(coroutine, "path", None) or task.get_name()
