"""One run of a task under one lease, from the top of its function until the function ends or waits.

body ── durable calls (durable_call) ──► the journal returns the outcome, or the call runs and is recorded
  └─ every branch waits (suspension) ──► one suspend with all open waits ──► waiting calls raise `Unwind`

After the commit that gives up the lease, durable calls raise `Unwind`, and the outcome of the body is ignored.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from flowfabric.core.errors import FlowFabricError, InvalidRequest, Refused, Unavailable
from flowfabric.core.executions.outcomes import Delayed, Lease
from flowfabric.core.executions.postpone import DIVERGED, RUN_FAILED
from flowfabric.core.executions.requests import Step, StepStatus
from flowfabric.core.policy import FailureClass
from flowfabric.runtime.branch import (
    BodyLeft,
    Branch,
    BranchResult,
    RunningStep,
    cancel_code,
    cancel_code_in,
    cancel_raw_tasks,
    require_branch,
    run_body,
)
from flowfabric.runtime.durable_call import CallTracker
from flowfabric.runtime.journal import KEYED, Record, Scope
from flowfabric.runtime.log import LOG, log_execution, log_failed_attempt, log_fields
from flowfabric.runtime.progress import ProgressReports, send_last
from flowfabric.runtime.record_writer import RecordWriter, retry_while_owned
from flowfabric.runtime.runner import (
    Host,
    IsHeld,
    TaskSpec,
    always_held,
    code_version,
    has_diverged_lately,
    is_new_report,
    note_divergence,
    retry_category,
)
from flowfabric.runtime.suspension import Suspender
from flowfabric.runtime.threads import ThreadPools
from flowfabric.store.forks import Forks, exit_child
from flowfabric.values import failures, guards
from flowfabric.values.errors import InputMismatch, LeaseLost, Unwind

if TYPE_CHECKING:
    from flowfabric.engine.engine import Engine


class RunHooks:
    """Callbacks of a run. In this class they do nothing; a test kit overrides them.

    A hook may call `run.restart()` or `run.lease_lost(…)` at any point. With `is_strict`, a run also raises an error
    if storing changes a result, or if a step changes its arguments.
    """

    is_strict = False

    def body_starting(self, run: TaskRun) -> None:
        """The body is about to run from its top."""

    def step_starting(self, run: TaskRun, path: str) -> None:
        """The function of a step is about to be called."""

    def record_starting(self, run: TaskRun, record: Record) -> None:
        """The recorded action has happened, and its record is about to be stored."""

    def record_stored(self, run: TaskRun, record: Record) -> None:
        """The record is stored and the run continues. This hook is not called for commits that give up the lease."""

    def suspending(self, run: TaskRun) -> None:
        """Every branch waits, and the lease is about to be given up."""


NO_HOOKS = RunHooks()
_PAUSE_S = 5
_CONSUMED = "@signals"


class TaskRun:
    """One run of a task's function under one lease."""

    def __init__(
        self,
        app: Host,
        task: TaskSpec,
        engine: Engine,
        lease: Lease,
        threads: ThreadPools,
        hooks: RunHooks = NO_HOOKS,
        *,
        is_held: IsHeld = always_held,
    ) -> None:
        self.app, self.task, self.engine, self.lease = app, task, engine, lease
        self.threads, self.hooks, self._is_held = threads, hooks, is_held
        self.loop = asyncio.get_running_loop()
        self.forks = Forks.number
        self._thread = threading.get_ident()
        self.is_over = False
        self.is_suspended = False
        self.is_lease_ended = False
        self.is_draining = False
        self.must_restart = False
        self.loss: FlowFabricError | None = None
        self.divergence: str | None = None
        self.mismatch: InputMismatch | None = None
        self.continuation: bytes | None = None
        self.cancel_due_at = lease.cancel_due_at
        self.seed = lease.generation
        self.dropped: asyncio.Future[None] | None = None
        self.progress: ProgressReports | None = None
        self.background_tasks: set[asyncio.Task[None]] = set()
        self.raw_tasks: set[asyncio.Task[Any]] = set()
        self._left_code: set[Future[Any] | asyncio.Future[Any]] = set()
        self._reset()

    def _reset(self) -> None:
        self.calls = CallTracker(self)
        self.record_writer = RecordWriter(self)
        self.suspender = Suspender(self)
        self.in_flight: dict[asyncio.Task[Any], RunningStep] = {}
        self.body = Branch(self, Scope(), is_plain=not self.task.is_async)

    async def run(self, *, is_cut_off: bool = False) -> bool:
        """Run the body until the lease is ended, given up or lost.

        Return False if the store has not confirmed that the lease has ended. With `is_cut_off`, do only what follows
        the body, which was cut off and does not leave the asyncio task of the first call.
        """
        is_left = False
        try:
            if is_cut_off:
                ending = await self._end_body(BranchResult())
            else:
                await _declare_signals(self)
                await _load(self, may_be_new=True)
                ending = await self._run_once()
            while self.must_restart:
                await _restart(self)
                ending = await self._run_once()
            await end_lease(self, ending)
        except BodyLeft:
            is_left = True
            raise
        except Unwind:
            pass
        except FlowFabricError as error:
            if not isinstance(error, InvalidRequest):
                log_execution(self.lease, logging.WARNING, " is postponed: %s", error)
            await end_refused(self, error)
        else:
            self.is_lease_ended = self.is_lease_ended or self.loss is None
        finally:
            if not is_left:
                self._close()
        return self.is_lease_ended or self.is_suspended

    def _close(self) -> None:
        """Remove the parts of the run, so that no reference cycle keeps them until the next garbage collection."""
        self.is_over = True
        self.calls.close_unstarted()
        del self.calls, self.record_writer, self.suspender, self.body

    async def wait_stopped(self) -> None:
        """Return when all code that the run left behind has ended."""
        while self._left_code:
            await asyncio.wait([asyncio.wrap_future(code) for code in tuple(self._left_code)])

    def leave_code(self, code: Future[Any] | asyncio.Future[Any]) -> None:
        """Remember code that continues after its call was cancelled, such as a plain function in a thread."""
        self._left_code.add(code)
        code.add_done_callback(self._left_code.discard)

    def exit_if_forked(self, path: str = "its body") -> None:
        """End this process if it was forked inside the code of this run. Only the parent continues the run."""
        if Forks.number != self.forks:
            exit_child(f"{self.task.name} ({path})")

    def owns_lease(self) -> bool:
        """Return False if the lease is lost. The worker's clock may have ended it before the worker reports it."""
        if self.loss is None and not self._is_held():
            message = "the lease ended because no renewal was acknowledged in time"
            self.lease_lost(Refused("lease_expired", message, execution_id=self.lease.execution_id))
        return self.loss is None

    def __getattr__(self, name: str) -> Any:
        """Raise `Unwind` for a part that was removed at the end of the run, so that late durable calls unwind."""
        if name in ("calls", "record_writer", "suspender"):
            raise self.unwind_error()
        raise AttributeError(name)

    async def _run_once(self) -> BranchResult:
        self.hooks.body_starting(self)
        self.suspender.branch_active()
        return await self._end_body(await run_body(self, self.body))

    async def _end_body(self, ending: BranchResult) -> BranchResult:
        """Check what the body left behind. Return how the body ended, or an error for its loose calls."""
        await cancel_raw_tasks(self)
        await self.suspender.wait_idle()
        if not self.is_over and ending.error is None and self.mismatch is None:
            for decide in self.calls.unrecorded_failures.take_passed():
                await decide()
            loose = self.calls.find_never_awaited()
            if loose is not None:
                return BranchResult(error=loose)
            report = self.calls.check_end(self.body.scope)
            self.divergence = report and f"{self.task.name} {self.lease.execution_id}: {report}"
        return ending

    def lease_lost(self, error: FlowFabricError) -> None:
        """Stop everything, since the lease is lost."""
        self.loss = error
        if not self.is_over:
            self.abandon()

    def abandon(self) -> None:
        """Cancel the code of the body at any point and unwind its waits. Any thread may call this."""
        self.is_over = True
        self.on_loop(self._abandon)

    def _abandon(self) -> None:
        cancel_code(self, {self.body})
        self._unwind_branches()

    def cancel_requested(self, due_at: datetime) -> None:
        """Deliver the request at an open wait, at a running async step or at the next durable call.

        The body gets it at one place only, and can clean up from there.
        """
        self.cancel_due_at = due_at
        self.suspender.deliver_cancel()
        if not self.calls.cancel_delivered and not self.is_over:
            self._interrupt_step()

    def _interrupt_step(self) -> None:
        """Cancel the function of the oldest running step that may be interrupted. The step delivers the request."""
        for task, running in self.in_flight.items():
            if running.can_interrupt and not running.branch.is_dropped:
                # No other call may deliver the request while the function ends.
                running.is_interrupted = self.calls.cancel_delivered = True
                cancel_code_in(task)
                return

    def drain(self) -> None:
        """Unwind at the next durable call. Running steps finish and are recorded before that."""
        self.is_draining = True
        if self.suspender.active == 0 and self.suspender.waiting:
            self.unwind()

    def waits_changed(self) -> None:
        """Recheck the waiting branches."""
        self.suspender.recheck()

    def restart(self) -> None:
        """Run the body again from the top under the same lease. Tests of determinism do this at every record."""
        self.must_restart = True
        self.unwind()

    def unwind(self) -> None:
        """Unwind the body and refuse further durable calls in it. A thread of the body may call this."""
        self.is_over = True
        self.on_loop(self._unwind_branches)

    def on_loop(self, call: Callable[..., object], *args: Any) -> None:
        """Call the function in the loop's thread: immediately if this is that thread, otherwise soon."""
        if threading.get_ident() == self._thread:
            call(*args)
        else:
            self.loop.call_soon_threadsafe(call, *args)

    def _unwind_branches(self) -> None:
        for task in self.in_flight:
            cancel_code_in(task)
        for wait, branch in reversed(list(self.suspender.waiting.items())):
            self.suspender.resolve(wait, self.calls.unwind_reason(branch))

    def unwind_error(self) -> Unwind:
        """Return the exception that makes the body unwind."""
        return LeaseLost() if self.loss is not None else Unwind()

    def now(self) -> datetime:
        """Return approximately the store's time, never earlier than the start of the lease."""
        return max(self.engine.now(), self.lease.acquired_at)


async def _declare_signals(run: TaskRun) -> None:
    """Open the waitpoints of the task's declared signals, if the execution was submitted without the task's code.

    Such an execution has no waitpoint, so it is standalone. All others have their waitpoints from the submit on.
    """
    if run.task.settings.signals and run.lease.is_standalone:
        declared = {signal.name: signal.schema for signal in run.task.settings.signals}
        await retry_while_owned(run, lambda: run.engine.waitpoints.declare(run.lease.fence, declared))


async def _load(run: TaskRun, *, may_be_new: bool) -> None:
    """Read the journal from the store, unless the claim has reported that there is none."""
    if may_be_new and not run.lease.has_journal:
        return
    steps = await retry_while_owned(run, lambda: run.engine.leases.journal(run.lease.fence)) or ()
    for step in steps:
        run.calls.remember(Record.from_step(step))
    # A replay can keep records of an earlier generation, so use the random values of that generation again.
    run.seed = steps[0].generation if steps else run.lease.generation


async def _restart(run: TaskRun) -> None:
    await run.record_writer.flush()
    await run.record_writer.wait_idle()
    run.must_restart, run.is_over = False, run.loss is not None
    run.calls.close_unstarted()
    run._reset()
    await _load(run, may_be_new=False)


async def end_lease(run: TaskRun, ending: BranchResult) -> None:
    """End the lease according to how the body ended. Do nothing if the lease was already given up or lost."""
    if run.is_suspended or run.loss is not None:
        if run.calls.has_unwound and not guards.is_a(ending.error, Unwind, asyncio.CancelledError):
            run.calls.warn_swallowed()
        return
    if run.progress is not None:
        await send_last(run)
    await run.record_writer.wait_idle()
    if run.divergence is not None:
        await _postpone_diverged(run, run.divergence)
    elif run.mismatch is not None:
        await _hold_run(run, "input_mismatch", str(run.mismatch))
    elif run.continuation is not None:
        await _continue(run, run.continuation)
    elif run.is_draining and (run.is_over or run.calls.has_unwound):
        await _release(run)
    elif ending.error is None:
        await _complete(run, ending)
    else:
        await _fail(run, ending.error)


async def end_refused(run: TaskRun, error: FlowFabricError) -> None:
    """End a lease that the store refused to end normally.

    After an invalid request, fail the execution permanently. After other errors, postpone it, so that it does not run
    again immediately. While the store is unavailable, retry until the lease is lost.
    """
    leases, fence = run.engine.leases, run.lease.fence

    async def end() -> None:
        if isinstance(error, InvalidRequest):
            kind, info = FailureClass.PERMANENT, failures.error_info(error)
            outcome = await leases.fail(fence, error.message, failure_class=kind, category=error.code)
            log_failed_attempt(run.lease, outcome, error, info)
        elif isinstance(error, Unavailable):
            await leases.delay(fence, after=_PAUSE_S)
        else:
            report, version = failures.format_safely(error), code_version(run.app)
            await leases.postpone(fence, RUN_FAILED, report, version=version, after=_PAUSE_S)

    try:
        await retry_while_owned(run, end)
    except FlowFabricError as refused:
        log_execution(run.lease, logging.INFO, " has a lease that could not be ended: %s", refused)
    else:
        run.is_lease_ended = run.is_lease_ended or run.loss is None


def is_final(error: BaseException, raises: Collection[type[Exception]] = ()) -> bool:
    """Return True if a retry cannot help, because the failure is recorded, or because every retry would fail too."""
    return guards.is_marked_final(error) or all(_is_final(leaf, raises) for leaf in failures.iter_leaves(error))


def _is_final(error: BaseException, raises: Collection[type[Exception]]) -> bool:
    return guards.is_a(error, InvalidRequest) or guards.is_marked_final(error) or failures.is_permanent(error, raises)


async def _postpone_diverged(run: TaskRun, report: str) -> None:
    """Release the execution for a worker whose code has another version. The engine holds it if there is none."""
    fence, version = run.lease.fence, code_version(run.app)
    outcome = await run.record_writer.commit_with(
        lambda steps: run.engine.leases.postpone(fence, DIVERGED, report, version=version, steps=steps)
    )
    if isinstance(outcome, Delayed):
        note_divergence(run.app)
        end = f"released for a worker with other code than version {version}, until {outcome.until:%H:%M:%S} UTC"
    else:
        end = "held until it is unheld"
    if outcome is not None and is_new_report(run.app, report):
        LOG.warning("%s\nThe execution is %s", report, end, extra=log_fields(run.lease))
    elif outcome is not None:
        log_execution(run.lease, logging.INFO, " diverged as before and is %s", end)


async def _hold_run(run: TaskRun, reason: str, report: str) -> None:
    held = await run.record_writer.commit_with(
        lambda steps: run.engine.leases.hold(run.lease.fence, reason, report, steps=steps)
    )
    if held is not None:
        log_execution(run.lease, logging.WARNING, " is held until it is unheld: %s", report)


async def _continue(run: TaskRun, payload: bytes) -> None:
    """Restart the execution with new input. Its new journal contains only a record of the consumed signals."""
    facts, steps, fence = run.calls.signals.facts(), list[Step](), run.lease.fence
    if facts:
        record = Record(path=_CONSUMED, scope="", index=KEYED, kind="signals", status=StepStatus.OK, facts=facts)
        steps.append(record.to_step())
    await retry_while_owned(run, lambda: run.engine.leases.continue_with(fence, payload, steps=steps))


async def _release(run: TaskRun) -> None:
    await run.record_writer.flush()
    await retry_while_owned(run, lambda: run.engine.leases.release(run.lease.fence))


async def _complete(run: TaskRun, ending: BranchResult) -> None:
    try:
        result = run.task.result_codec.store(ending.value)
    except FlowFabricError as error:
        await _fail(run, error)
        return
    await run.record_writer.finish(lambda steps: run.engine.leases.complete(run.lease.fence, result, steps=steps))


async def _fail(run: TaskRun, error: BaseException) -> None:
    if run.calls.cancel_delivered:
        await run.record_writer.commit_with(lambda steps: run.engine.leases.cancel(run.lease.fence, steps=steps))
        return
    raises, failure = run.task.settings.raises, _as_failure(error)
    info = failures.error_info(failure)
    kind = FailureClass.PERMANENT if is_final(error, raises) or info.permanent else FailureClass.TRANSIENT
    document = failures.to_json(info) | (failures.encode_declared(error, raises) or {})
    fence, detail = run.lease.fence, json.dumps(document).encode()
    message = f"{info.type}: {info.message}"[:1000]
    # The engine knows only categories, so if `retry_on` names an exception class, its failures get the class name.
    category = retry_category(error, info.category, run.task.settings.retry_on) or info.category or kind.value
    facts: dict[str, Any] = {"failure_class": kind, "category": category, "detail": detail}
    outcome = await run.record_writer.commit_with(
        lambda steps: run.engine.leases.fail(fence, message, **facts, steps=steps)
    )
    log_failed_attempt(run.lease, outcome, failure, info)


def _as_failure(error: BaseException) -> BaseException:
    """Return the error. Replace a cancellation by the function's own code with an ordinary failure."""
    if guards.is_a(error, asyncio.CancelledError):
        failure = RuntimeError("the function was cancelled by its own code")
        failure.__cause__ = error
        return failure
    return error


class TaskRunner:
    """Creates the runs for leases of an app's tasks."""

    def __init__(self, app: Host, threads: ThreadPools, hooks: RunHooks = NO_HOOKS) -> None:
        self._app, self._threads, self._hooks = app, threads, hooks

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds of all registered tasks."""
        return tuple(self._app.tasks)

    @property
    def version(self) -> str:
        """The version of the app's code."""
        return code_version(self._app)

    @property
    def is_yielding(self) -> bool:
        """True for a moment after an execution did not match the code of the app."""
        return has_diverged_lately(self._app)

    def begin(self, engine: Engine, lease: Lease, is_held: IsHeld = always_held) -> TaskRun:
        """Return a new run for a lease, without starting the run."""
        app, threads, hooks = self._app, self._threads, self._hooks
        return TaskRun(app, app.tasks[lease.kind], engine, lease, threads, hooks, is_held=is_held)


def continue_with(task: TaskSpec, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> NoReturn:
    """End the run. The same execution then starts again with these arguments and an empty journal."""
    branch = require_branch("continue_with")
    branch.run.calls.check_alive(branch)
    if task.name != branch.run.task.name:
        message = f"{branch.run.task.name} can only continue as itself; submit {task.name} instead"
        raise InvalidRequest("other_task", message)
    branch.run.continuation = task.inputs.pack(args, dict(kwargs))
    branch.run.unwind()
    raise Unwind
