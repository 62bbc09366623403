"""Steps: functions whose results are recorded, so that they happen once however often the task runs again."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextvars import copy_context
from datetime import datetime
from functools import partial
from typing import Any, Concatenate, TypeVar, overload

from flowfabric.core.errors import InvalidRequest
from flowfabric.core.requests import StepStatus
from flowfabric.core.retry import backoff_delay
from flowfabric.sdk import failures, retrying
from flowfabric.sdk.aliases import Async, Durable, Duration, P, T
from flowfabric.sdk.digests import arguments_digest
from flowfabric.sdk.durable import DurableCall, here
from flowfabric.sdk.ending import FINAL_MARK, is_final
from flowfabric.sdk.errors import CancelRequested, StepFailed, Unwind, ValueRefused
from flowfabric.sdk.journal import Record
from flowfabric.sdk.parking import Wait
from flowfabric.sdk.records import ErrorInfo
from flowfabric.sdk.step_policies import NO_POLICY, StepPolicy, attach, checked_raises, plan
from flowfabric.sdk.storing import checked_result
from flowfabric.sdk.units import STEP, StepContext, Unit, require_unit

F = TypeVar("F", bound=Callable[..., Any])


class Steps:
    """What `step` is: call it with a function and its arguments."""

    def __init__(self, called: StepPolicy = NO_POLICY) -> None:
        self._called = called

    @overload
    def __call__(self, fn: Async[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Durable[T]: ...
    @overload
    def __call__(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Durable[T]: ...
    def __call__(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls the function once: its result is recorded, and answers in every later run."""
        return StepCall(require_unit("step"), fn, args, kwargs, self._called)

    @overload
    def tx(
        self, fn: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Durable[T]: ...
    @overload
    def tx(self, fn: Callable[Concatenate[Any, P], T], /, *args: P.args, **kwargs: P.kwargs) -> Durable[T]: ...
    def tx(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls the function with the store's own connection: its rows and the record commit together, or neither.

        On SQLite it is a plain function of the `sqlite3` connection, on PostgreSQL a coroutine function of the asyncpg
        one. Keep it short: others wait for it.
        """
        from flowfabric.sdk.transactions import TransactionCall

        return TransactionCall(require_unit("step.tx"), fn, args, kwargs, self._called)

    def options(
        self, *, name: str | None = None, key: str | None = None, retries: int | None = None,
        timeout: Duration | None = None, retry_on: Collection[str | type[Exception]] | None = None,
    ) -> Steps:  # fmt: skip
        """The same for one call: under another name, told apart by a key, tried otherwise."""
        only = None if retry_on is None else retrying.checked(retry_on)
        return Steps(StepPolicy(name=name, key=key, retries=retries, timeout=timeout, retry_on=only))

    def policy(
        self, *, name: str | None = None, retries: int | None = None, timeout: Duration | None = None,
        raises: Collection[type[Exception]] = (), at_most_once: bool = False,
        retry_on: Collection[str | type[Exception]] | None = None,
    ) -> Callable[[F], F]:  # fmt: skip
        """Decorates a function with how it is tried as a step; it stays a plain function.

        `raises` names its answers that are no accidents: they are never retried, and can be caught by class. With
        `at_most_once` a step that was interrupted is not run again, but fails. If `retry_on` names categories or
        classes of failures, only those are retried.
        """
        found = StepPolicy(
            name=name, retries=retries, timeout=timeout, raises=checked_raises(raises), at_most_once=at_most_once,
            retry_on=None if retry_on is None else retrying.checked(retry_on),
        )  # fmt: skip

        def decorate(fn: F) -> F:
            attach(fn, found)
            return fn

        return decorate


step = Steps()


class StepCall(DurableCall[Any]):
    """One call of a function as a step."""

    kind = "step"

    def __init__(
        self, unit: Unit, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any],
        called: StepPolicy = NO_POLICY, *, name: str | None = None,
    ) -> None:  # fmt: skip
        if not callable(fn):
            found = f"{type(fn).__name__}; a task is run by await task.run(…)"
            raise InvalidRequest("invalid_type", f"a step is a function and its arguments, not {found}")
        digest = None if unit.run.app.arguments == "off" else arguments_digest(args, kwargs)
        self.fn, self.args, self.kwargs = fn, args, kwargs
        self.plan = plan(unit.run.task, fn, called)
        super().__init__(unit, name or self.plan.name, self.kind, key=called.key, digest=digest)

    def replayed(self, record: Record) -> Any:
        if record.status is StepStatus.FAILED:
            raise failure_of(record, self.plan.raises)
        return checked_result(self.fn).restore(record.value)

    async def fresh(self) -> Any:
        facts = self.record.facts if self.record is not None else {}
        tries, due = facts.get("tries", 0), facts.get("due")
        if facts.get("begun") and due is None:
            raise await self._failed(_interrupted(self.path), tries)
        while True:
            if due is not None:
                await self._rested(datetime.fromisoformat(due))
            if self.plan.at_most_once:
                await self.run.commits.write(self.made.record(StepStatus.OPEN, begun=True, tries=tries))
            try:
                return await self._succeed()
            except Exception as error:
                tries += 1
                due = await self._may_try_again(error, tries)

    async def _succeed(self) -> Any:
        """Performs the step and records its result; what is stored is what the first run sees."""
        result = await self._performed()
        stored = checked_result(self.fn).stored(result, self)
        await self.run.commits.write(self.made.record(StepStatus.OK, value=stored.data))
        return stored.value

    def _performed(self) -> Coroutine[Any, Any, Any]:
        """What the function answers. In tests it must not change its arguments: a re-run would not."""
        probe = self.run.probe
        probe.performing(self.run, self.path)
        return self._strictly_called() if probe.is_strict else self._called()

    async def _strictly_called(self) -> Any:
        before = arguments_digest(self.args, self.kwargs)
        result = await self._called()
        if arguments_digest(self.args, self.kwargs) != before:
            message = f"{self.path} changed its arguments, which a later run would not see; return what is new instead"
            raise ValueRefused(message, code="arguments_changed", path=self.path)
        return result

    async def _called(self) -> Any:
        run, task = self.run, asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        run.in_flight[task] = here(self)
        context = StepContext(run, self.path)
        token = STEP.set(context)
        try:
            if self.plan.timeout is not None:
                return await self._in_time(self.plan.timeout.total_seconds())
            return await (self.fn(*self.args, **self.kwargs) if self.plan.is_async else self._in_thread())
        except asyncio.CancelledError as error:
            if run.is_over:
                raise run.calls.tell(here(self)) from None
            if not task.cancelling():
                # Nobody gave the call up, something within it did: a failure like any other.
                raise RuntimeError(f"{self.path} was cancelled by its own code") from error
            run.commits.ride(self.made.record(StepStatus.ABANDONED))
            if here(self).is_dropped:
                raise Unwind from None
            raise
        finally:
            context.is_left = True
            STEP.reset(token)
            run.in_flight.pop(task, None)

    async def _in_time(self, seconds: float) -> Any:
        timer = asyncio.timeout(seconds)
        try:
            async with timer:
                return await (self.fn(*self.args, **self.kwargs) if self.plan.is_async else self._in_thread())
        except TimeoutError:
            if timer.expired():
                raise TimeoutError(f"{self.path} took longer than {seconds:g} s") from None
            raise

    async def _in_thread(self) -> Any:
        """The result of a plain function; what it answers may still be something to await."""
        call = partial(self.fn, *self.args, **self.kwargs)
        found = await self.run.loop.run_in_executor(self.run.threads.steps, copy_context().run, _called, call)
        return await found if inspect.isawaitable(found) else found

    async def _may_try_again(self, error: Exception, tries: int) -> str:
        """When to try again; raises the failure if it is final."""
        declared = failures.declared(error, self.plan.raises)
        info = failures.error_info(error)
        is_retried = retrying.retried_as(error, info.category, self.plan.retry_on) is not None
        if is_final(error, self.plan.raises) or tries > self.plan.retries or not is_retried:
            raise await self._failed(info, tries, declared, error)
        due = self.run.now() + backoff_delay(self.plan.backoff, tries - 1, random.random())
        said = failures.to_json(info)
        record = self.made.record(StepStatus.OPEN, tries=tries, due=due.isoformat(), error=said)
        self.run.commits.ride(record)
        return due.isoformat()

    async def _failed(
        self, info: ErrorInfo, tries: int, declared: Mapping[str, Any] | None = None, cause: Exception | None = None
    ) -> Exception:
        """Records the final failure and answers what the function is to see."""
        said = {**failures.to_json(info), **(declared or {})}
        record = self.made.record(StepStatus.FAILED, tries=tries, error=said)
        await self.run.commits.write(record)
        failure = failure_of(record, self.plan.raises)
        failure.__cause__ = cause
        return failure

    async def _rested(self, due: datetime) -> None:
        """Waits for the next try; whoever gives the step up meanwhile is recorded, as while it runs."""
        try:
            await self._back_off(due)
        except asyncio.CancelledError as error:
            if not isinstance(error, CancelRequested) and not self.run.is_over:
                self.run.commits.ride(self.made.record(StepStatus.ABANDONED))
            raise

    async def _back_off(self, due: datetime) -> None:
        wait = Wait(self, due)
        unit = here(self)
        if asyncio.current_task() is unit.task:
            await self.run.resting.park(unit, wait)
        else:
            await asyncio.sleep(max(0.0, (due - self.run.now()).total_seconds()))


def failure_of(record: Record, raises: Collection[type[Exception]]) -> Exception:
    """What the function sees of a recorded failure, in the first run as in every later one."""
    said = record.facts["error"]
    found = failures.rebuild(said, raises)
    if found is None:
        return StepFailed(failures.from_json(said), record.path, raises=raises)
    setattr(found, FINAL_MARK, True)
    return found


def _interrupted(path: str) -> ErrorInfo:
    message = f"{path} was interrupted and may have happened; it is declared to happen at most once"
    return ErrorInfo(type="StepInterrupted", message=message, category="interrupted", permanent=True)


def _called(call: Callable[[], Any]) -> Any:
    """What the function answers. No future carries a StopIteration, so it is told as coroutines tell it."""
    try:
        return call()
    except StopIteration as error:
        raise RuntimeError("the function raised StopIteration") from error
