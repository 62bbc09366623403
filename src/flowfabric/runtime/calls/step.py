"""Steps: functions whose results are recorded, so that they do not run again when the task runs again.

The policy of a step combines three sources. The call's options take precedence over the function's `@step.policy`, and
both over the settings of the task.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from types import FunctionType
from typing import Any, Concatenate, Literal, TypeVar, overload

from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.executions.requests import StepStatus
from flowfabric.core.policy import Backoff, backoff_delay
from flowfabric.runtime.branch import STEP, Branch, BranchResult, RunningStep, StepContext, require_branch
from flowfabric.runtime.durable_call import DurableCall, awaiting_branch
from flowfabric.runtime.journal import Record
from flowfabric.runtime.log import log_execution, log_failed_try
from flowfabric.runtime.options import Retryable, check_options
from flowfabric.runtime.results import failure_of, store_result
from flowfabric.runtime.run import is_final
from flowfabric.runtime.runner import CallOptions, TaskSpec, retry_category, task_called_error
from flowfabric.runtime.waits import Wait
from flowfabric.values import ValueCodec, failures, guards, return_codec
from flowfabric.values.aliases import Async, Durable, Duration, P, T
from flowfabric.values.errors import CancelRequested, Unwind, ValueRefused
from flowfabric.values.inputs import ChangedArguments, digest_arguments
from flowfabric.values.records import ErrorInfo

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__flowfabric_step__"
_SEPARATORS = ("#", "[", "/")
_changed = ChangedArguments()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPolicy:
    """The settings of `@step.policy(…)` and `step.options(…)`. Omitted settings default to those of the task."""

    name: str | None = None
    key: str | None = None
    retries: int | None = None
    timeout: Duration | None = None
    raises: tuple[type[Exception], ...] = ()
    at_most_once: bool = False
    retry_on: tuple[Retryable, ...] | None = None
    on_cancel: Literal["interrupt", "finish"] | None = None

    def __post_init__(self) -> None:
        if self.on_cancel not in (None, "interrupt", "finish"):
            message = f"on_cancel must be 'interrupt' or 'finish', not {validation.preview(self.on_cancel)}"
            raise InvalidRequest("invalid_choice", message, field="on_cancel")
        if self.name is not None and any(sign in self.name for sign in _SEPARATORS):
            message = f"name must be without {' '.join(_SEPARATORS)}, which number calls of the same name"
            raise InvalidRequest("invalid_name", message, field="name")


@dataclass(slots=True, kw_only=True)
class StepPlan:
    """The name of a step, and all settings by which the step runs and is retried."""

    own_policy: StepPolicy
    name: str
    is_async: bool
    retries: int
    backoff: Backoff
    timeout: timedelta | None
    raises: tuple[type[Exception], ...]
    at_most_once: bool
    retry_on: tuple[Retryable, ...] = ()
    can_interrupt: bool = False
    _codec: ValueCodec[Any] | None = None

    def codec_of(self, fn: Callable[..., Any]) -> ValueCodec[Any]:
        """Return the codec for the results of the function of this plan. The first result makes the codec."""
        if self._codec is None:
            self._codec = return_codec(fn)
        return self._codec


NO_POLICY = StepPolicy()


class StepFunction:
    """The type of `step`, which is called with a function and the arguments of that function."""

    def __init__(self, policy: StepPolicy = NO_POLICY) -> None:
        self._policy = policy

    @overload
    def __call__(self, fn: Async[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Durable[T]: ...
    @overload
    def __call__(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Durable[T]: ...
    def __call__(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run the function and record its result. In later runs of the task, return the recorded result instead."""
        return StepCall(require_branch("step"), fn, args, kwargs, self._policy)

    @overload
    def tx(
        self, fn: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Durable[T]: ...
    @overload
    def tx(self, fn: Callable[Concatenate[Any, P], T], /, *args: P.args, **kwargs: P.kwargs) -> Durable[T]: ...
    def tx(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run the function in a transaction of the store, which commits the function's rows and the step's record.

        On SQLite, the function must be plain, and its first argument is the `sqlite3` connection. On PostgreSQL, it
        must be a coroutine function, and its first argument is the asyncpg connection. Keep the function short. On
        SQLite every other writer waits for it, so it fails with `transaction_too_long` after a third of the lease.
        """
        from flowfabric.runtime.calls.transaction import TransactionCall

        return TransactionCall(require_branch("step.tx"), fn, args, kwargs, self._policy)

    def options(
        self,
        *,
        name: str | None = None,
        key: str | None = None,
        retries: int | None = None,
        timeout: Duration | None = None,
        retry_on: Collection[str | type[Exception]] | None = None,
        on_cancel: Literal["interrupt", "finish"] | None = None,
    ) -> StepFunction:
        """Return `step` with options for one call: its name, its retries, or a key that distinguishes similar calls.

        With `on_cancel="finish"`, a request to cancel waits until the running step has ended.
        """
        options = check_options(
            {"name": name, "key": key, "retries": retries, "timeout": timeout, "retry_on": retry_on}
        )
        return StepFunction(StepPolicy(**options, on_cancel=on_cancel))

    def policy(
        self,
        *,
        name: str | None = None,
        retries: int | None = None,
        timeout: Duration | None = None,
        raises: Collection[type[Exception]] = (),
        at_most_once: bool = False,
        retry_on: Collection[str | type[Exception]] | None = None,
        on_cancel: Literal["interrupt", "finish"] = "interrupt",
    ) -> Callable[[F], F]:
        """Set the policy that a function has when it runs as a step. The decorator returns the function itself.

        Exceptions in `raises` are expected results: they are never retried, and the task can catch them by class. With
        `at_most_once`, an interrupted step fails instead of running again. With `retry_on`, only failures of these
        categories or classes are retried. A request to cancel interrupts a running coroutine function, unless
        `on_cancel="finish"` is set.
        """
        options = check_options(
            {"name": name, "retries": retries, "timeout": timeout, "raises": raises, "retry_on": retry_on}
        )
        step_policy = StepPolicy(**options, at_most_once=at_most_once, on_cancel=on_cancel)

        def decorate(fn: F) -> F:
            try:
                setattr(fn, _MARK, step_policy)
            except AttributeError:
                message = f"{fn!r} cannot carry a policy; wrap it in a function, or use step.options at the call"
                raise InvalidRequest("policy_refused", message) from None
            return fn

        return decorate


step = StepFunction()


_REPLACED = str.maketrans("#[/", "___")


def as_step(name: str, fn: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> Durable[T]:
    """Run a client call as a step of this name."""
    return step.options(name=name.translate(_REPLACED))(fn, *args)


class StepCall(DurableCall[Any]):
    """One call of a function as a step.

    `ran` has the start and the duration of the last try. `failed` has the number of failed tries and the last failure.
    """

    kind = "step"
    started_s = 0.0
    ran: tuple[int, int] | None = None
    failed: Mapping[str, Any] = {}

    def __init__(
        self,
        branch: Branch,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: StepPolicy = NO_POLICY,
        *,
        name: str | None = None,
    ) -> None:
        if not isinstance(fn, FunctionType) and isinstance(getattr(fn, "call_options", None), CallOptions):
            raise task_called_error(fn.__name__)
        if not callable(fn):
            message = f"a step is a function and its arguments, not {type(fn).__name__}"
            raise InvalidRequest("invalid_type", message)
        digest = None if branch.run.app.arguments == "off" else digest_arguments(args, kwargs)
        self.fn, self.args, self.kwargs = fn, args, kwargs
        self.plan = step_plan(branch.run.task, fn, options)
        super().__init__(branch, name or self.plan.name, self.kind, key=options.key, digest=digest)

    def replay(self, record: Record) -> Any:
        if record.status is StepStatus.FAILED:
            raise failure_of(record, self.plan.raises)
        return self.plan.codec_of(self.fn).restore(record.value)

    async def execute(self) -> Any:
        facts = self.record.facts if self.record is not None else {}
        tries, due = facts.get("tries", 0), facts.get("due")
        if tries:
            self.failed = {"tries": tries, "error": facts.get("error")}
        if facts.get("begun") and due is None:
            raise await self._record_failure(_interrupted_error(self.path), tries)
        while True:
            if due is not None:
                await self._wait_for_retry(datetime.fromisoformat(due))
            if self.plan.at_most_once:
                begun = {"tries": tries, **self.failed, "begun": True}
                await self.run.record_writer.write(self.call_id.record(StepStatus.OPEN, **begun))
                self.run.calls.check_cancel(self)
            self.start_try()
            try:
                return await self._succeed()
            except Exception as error:
                self.end_try()
                tries += 1
                due = await self._next_try(error, tries)

    async def _succeed(self) -> Any:
        """Call the function and record its result. Return the stored value."""
        result = await self._perform()
        self.end_try()
        stored = store_result(result, self.plan.codec_of(self.fn), self)
        self.warn_if_changed()
        await self.run.record_writer.write(self.record_result(stored.data))
        return stored.value

    def start_try(self) -> None:
        """Note when a try begins."""
        self.started_s = time.monotonic()
        self.ran = (self.run.calls.to_epoch_ms(self.started_s), 0)

    def end_try(self) -> None:
        """Note how long the try took."""
        if self.ran is not None:
            self.ran = (self.ran[0], int(1000 * (time.monotonic() - self.started_s)))

    def record_result(self, value: bytes, **facts: Any) -> Record:
        """Return the record of the result, with the last failure if an earlier try failed."""
        return self.call_id.record(StepStatus.OK, value=value, ran=self.ran, **facts, **self.failed)

    def abandon(self) -> None:
        """Record that the code has cancelled the step."""
        record = self.call_id.record(StepStatus.ABANDONED, ran=self.ran, **self.failed)
        self.run.record_writer.enqueue(record)

    def warn_if_changed(self) -> None:
        """Warn once per function if the step has changed its arguments. A later run would not see the change."""
        function = (self.run.task.name, self.plan.name)
        if _changed.found(function, self.call_id.digest, self.args, self.kwargs):
            end = ": %s changed its arguments, which a later run would not see; return the new value instead"
            log_execution(self.run.lease, logging.WARNING, end, self.path, step=self.path)

    def _perform(self) -> Coroutine[Any, Any, Any]:
        """Call the function. With strict hooks, as in tests, raise if the function changes its arguments.

        A later run would not see such a change.
        """
        hooks = self.run.hooks
        hooks.step_starting(self.run, self.path)
        return self._call_strictly() if hooks.is_strict else self._call()

    async def _call_strictly(self) -> Any:
        before = digest_arguments(self.args, self.kwargs)
        result = await self._call()
        if digest_arguments(self.args, self.kwargs) != before:
            message = (
                f"{self.path} changed its arguments, which a later run would not see; return the new value instead"
            )
            raise ValueRefused(message, code="arguments_changed", path=self.path)
        return result

    async def _call(self) -> Any:
        run, task = self.run, asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        branch = awaiting_branch(self)
        # A step in an asyncio task of the user finishes, because the task's code could not be told of the request.
        running = run.in_flight[task] = RunningStep(branch, self.plan.can_interrupt and task is branch.task)
        context = StepContext(run, self.path)
        token = STEP.set(context)
        try:
            if self.plan.timeout is not None:
                result = await self._call_with_timeout(self.plan.timeout.total_seconds())
            else:
                result = await (self.fn(*self.args, **self.kwargs) if self.plan.is_async else self._call_in_thread())
        except (asyncio.CancelledError, Exception) as error:
            self.end_try()
            if running.is_interrupted and not run.is_over:
                raise self._deliver_cancel(task, branch) from error
            if guards.is_a(error, Exception):
                raise
            if run.is_over:
                raise run.calls.unwind_reason(branch) from None
            if not task.cancelling():
                # The step's function cancelled itself, which counts as an ordinary failure.
                raise RuntimeError(f"{self.path} was cancelled by its own code") from error
            self.abandon()
            if branch.is_dropped:
                raise Unwind from None
            raise
        else:
            if running.is_interrupted and not run.is_over:
                # The function has finished all the same, so the next durable call delivers the request.
                task.uncancel()
                run.calls.cancel_delivered = False
            return result
        finally:
            run.exit_if_forked(self.path)
            context.is_abandoned = True
            STEP.reset(token)
            run.in_flight.pop(task, None)

    def _deliver_cancel(self, task: asyncio.Task[Any], branch: Branch) -> BaseException:
        """Record the interrupted step as abandoned, and return the request to raise at its await.

        If the branch was dropped meanwhile, the next durable call of another branch delivers the request.
        """
        task.uncancel()
        calls = self.run.calls
        if branch.is_dropped:
            calls.cancel_delivered = False
            self.abandon()
            return Unwind()
        calls.deliver_cancel(self, StepStatus.ABANDONED, self.ran)
        return CancelRequested()

    async def _call_with_timeout(self, seconds: float) -> Any:
        timer = asyncio.timeout(seconds)
        try:
            async with timer:
                return await (self.fn(*self.args, **self.kwargs) if self.plan.is_async else self._call_in_thread())
        except TimeoutError:
            if timer.expired():
                raise TimeoutError(f"{self.path} took longer than {seconds:g} s") from None
            raise

    async def _call_in_thread(self) -> Any:
        """Run a plain function in a thread and return its result. If the result is awaitable, await it first."""
        call = partial(self.fn, *self.args, **self.kwargs)
        work = self.run.threads.steps.submit(copy_context().run, self._call_function, call)
        try:
            ending = await asyncio.wrap_future(work)
        except asyncio.CancelledError:
            self.run.leave_code(work)
            raise
        if ending.error is not None:
            raise ending.error
        return await ending.value if inspect.isawaitable(ending.value) else ending.value

    def _call_function(self, call: Callable[[], Any]) -> BranchResult:
        """Call the function, and return how it ended. A future cannot hold every exception, so none is raised here.

        A coroutine cannot raise StopIteration, so RuntimeError replaces it.
        """
        try:
            return BranchResult(call())
        except StopIteration as error:
            replaced = RuntimeError("the function raised StopIteration")
            replaced.__cause__ = error
            return BranchResult(error=replaced)
        except BaseException as error:
            return BranchResult(error=error)
        finally:
            self.run.exit_if_forked(self.path)

    async def _next_try(self, error: Exception, tries: int) -> str:
        """Record the failed try and return the time of the next try. Raise the failure if there is no next try."""
        encode_declared = failures.encode_declared(error, self.plan.raises)
        info = failures.error_info(error)
        is_retried = retry_category(error, info.category, self.plan.retry_on) is not None
        is_last = is_final(error, self.plan.raises) or tries > self.plan.retries or not is_retried
        due = None if is_last else self.run.now() + backoff_delay(self.plan.backoff, tries - 1, random.random())
        if not failures.is_declared(error, self.plan.raises):  # Such an error is an expected result.
            log_failed_try(self.run.lease, self.path, (tries, self.plan.retries + 1), error, info, due)
        if due is None:
            raise await self._record_failure(info, tries, encode_declared, error)
        self.failed = {"tries": tries, "error": failures.to_json(info)}
        facts = {"due": due.isoformat(), "retries": self.plan.retries, **self.failed}
        self.run.record_writer.report(self.call_id.record(StepStatus.OPEN, ran=self.ran, **facts))
        return due.isoformat()

    async def _record_failure(
        self, info: ErrorInfo, tries: int, declared: Mapping[str, Any] | None = None, cause: Exception | None = None
    ) -> Exception:
        """Record the final failure, and return the error to raise in the task's function."""
        document = {**failures.to_json(info), **(declared or {})}
        record = self.call_id.record(StepStatus.FAILED, ran=self.ran, tries=tries, error=document)
        await self.run.record_writer.write(record)
        return failure_of(record, self.plan.raises, cause)

    async def _wait_for_retry(self, due: datetime) -> None:
        """Wait until the next try is due. If the call is cancelled during the wait, record it as abandoned."""
        try:
            await self._back_off(due)
        except asyncio.CancelledError as error:
            if not guards.is_a(error, CancelRequested) and not self.run.is_over:
                self.abandon()
            raise

    async def _back_off(self, due: datetime) -> None:
        wait = Wait(self, due)
        branch = awaiting_branch(self)
        if asyncio.current_task() is branch.task:
            await self.run.suspender.wait(branch, wait)
        else:
            await asyncio.sleep(max(0.0, (due - self.run.now()).total_seconds()))
            self.run.calls.check_alive(branch)


def _interrupted_error(path: str) -> ErrorInfo:
    message = f"{path} was interrupted and may have happened; it is declared to happen at most once"
    return ErrorInfo(type="StepInterrupted", message=message, category="interrupted", permanent=True)


def policy_of(fn: Callable[..., Any]) -> StepPolicy:
    """Return the policy that `@step.policy` set on the function, even if `fn` is a partial or a bound method."""
    policy = getattr(unwrap_partial(fn), _MARK, NO_POLICY)
    assert isinstance(policy, StepPolicy), "only `step.policy` writes the mark"
    return policy


def step_plan(task: TaskSpec, fn: Callable[..., Any], options: StepPolicy) -> StepPlan:
    """Return the plan by which a step runs. Cache it for each function and task, unless the call has options."""
    if options is not NO_POLICY or not isinstance(fn, FunctionType):
        return _make_plan(task, fn, options)
    plan = task.step_plans.get(fn)
    if plan is None or plan.own_policy is not getattr(fn, _MARK, NO_POLICY):
        plan = task.step_plans[fn] = _make_plan(task, fn, options)
    return plan


def _make_plan(task: TaskSpec, fn: Callable[..., Any], options: StepPolicy) -> StepPlan:
    """Combine the settings of the call, the function and the task. The first of them that is set counts."""
    own, settings = policy_of(fn), task.settings
    retries = next(
        value
        for value in (options.retries, own.retries, task.call_options.retries, settings.retries)
        if value is not None
    )
    timeout = own.timeout if options.timeout is None else options.timeout
    is_async = inspect.iscoroutinefunction(fn)
    retry_on = own.retry_on if options.retry_on is None else options.retry_on
    return StepPlan(
        own_policy=own,
        name=step_name(fn, options),
        is_async=is_async,
        retries=retries,
        backoff=settings.backoff,
        raises=own.raises,
        at_most_once=own.at_most_once,
        timeout=None if timeout is None else validation.duration(timeout, "timeout"),
        retry_on=settings.retry_on if retry_on is None else retry_on,
        can_interrupt=is_async and (options.on_cancel or own.on_cancel) != "finish",
    )


def step_name(fn: Callable[..., Any], options: StepPolicy = NO_POLICY) -> str:
    """Return the name of a step from its options or policy, or else the name of its function."""
    named = options.name or policy_of(fn).name
    if named is not None:
        return named
    inner = unwrap_partial(fn)
    qualified = getattr(inner, "__qualname__", None) or type(inner).__qualname__
    return qualified.rpartition("<locals>.")[2]


def unwrap_partial(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function inside any `functools.partial` objects."""
    while isinstance(fn, partial):
        fn = fn.func
    return fn
