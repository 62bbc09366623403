"""Submitting of executions: one or many, as standalone executions or children, or in the caller's transaction."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID
from weakref import WeakKeyDictionary

from flowfabric.app.client_thread import run_on_client_thread
from flowfabric.app.handle import Handle
from flowfabric.core import validation
from flowfabric.core.errors import FlowFabricError, InvalidRequest, NotFound
from flowfabric.core.executions.outcomes import Submitted
from flowfabric.core.executions.requests import Submission
from flowfabric.core.executions.states import State
from flowfabric.core.workers import find_missing_worker
from flowfabric.runtime import results
from flowfabric.runtime.branch import BRANCH, STEP, current_branch
from flowfabric.runtime.signals import idempotency_key, is_in_task
from flowfabric.values.aliases import Durable, P, R, awaited_as

if TYPE_CHECKING:
    from flowfabric.app.app import App
    from flowfabric.app.task import Call, Task
    from flowfabric.engine.engine import Engine


# With this mark, pytest leaves out the frames of this module, so that a failed test shows the lines of the user.
__tracebackhide__ = True


def submit(task: Task[P, R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Durable[Handle[R]]:
    """Store an execution: as a child inside a task, or as a standalone execution anywhere else."""
    if is_in_task():
        from flowfabric.runtime.calls.children import submit_child

        _refuse_connection(task, "a child is stored together with its record")
        return submit_child(task, args, kwargs)
    return _submit(task.newest, _with_key(task, task.submission(args, kwargs)))


def find_by_key(task: Task[P, R], key: str) -> Durable[Handle[R]]:
    """Return the handle of the execution of this task that holds a key. Inside a task, this is a step."""
    name = validation.name(key, "key")
    if is_in_task():
        from flowfabric.runtime.calls.step import as_step

        return _to_handle(task, as_step(f"by_key:{task.base}", _find_id, task.app, task.base, name))
    return _by_key(task, name)


def submit_sync(task: Task[P, R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Handle[R]:
    """Store an execution from plain code. If the task has a `connection` option, use it in the caller's own thread."""
    if task.call_options.connection is None or (BRANCH.get() is not None and STEP.get() is None):
        return run_on_client_thread(lambda: submit(task, args, kwargs))
    submission = _with_key(task, task.submission(args, kwargs))
    engine = run_on_client_thread(task.app.engine)
    return Handle(
        task.app, engine.executions.submit_in_transaction_sync(task.call_options.connection, submission).id, task.newest
    )


def run(task: Task[P, R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Durable[R]:
    """Store an execution and wait for its result."""
    _refuse_connection(task, "workers see it only after the commit of that transaction; submit it and wait afterwards")
    if current_branch() is not None:
        from flowfabric.runtime.calls.children import run_child

        return run_child(task, args, kwargs)
    return _run(task.newest, _with_key(task, task.submission(args, kwargs)))


def make_call(task: Task[P, R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call[R]:
    """Return a call with validated inputs."""
    from flowfabric.app.task import Call

    _refuse_connection(task, "many calls are stored in separate batches")
    submission = task.submission(args, kwargs)
    if task.call_options.key is not None:
        submission = replace(submission, key=task.call_options.key)
    return Call(task.newest, args, kwargs, submission)


def submit_many(app: App, calls: Iterable[Call[R]]) -> Durable[list[Handle[R]]]:
    """Store all calls in batches. Inside a task, the new executions are children of the task's execution."""
    valid_calls = _validate_calls(app, calls)
    if is_in_task():
        return _submit_children(valid_calls)
    if STEP.get() is not None:
        return _submit_many(app, valid_calls, [_with_key(call.task, call.submission) for call in valid_calls])
    return _submit_many(app, valid_calls, [call.submission for call in valid_calls])


@awaited_as("Task.submit")
async def _submit(task: Task[..., R], submission: Submission) -> Handle[R]:
    engine = await task.app.engine()
    if task.call_options.connection is not None:
        submitted = await _submit_in_transaction(engine, task.call_options.connection, submission)
    else:
        submitted = await engine.executions.submit(submission)
    return Handle(task.app, submitted.id, task)


@awaited_as("Task.by_key")
async def _by_key(task: Task[..., R], key: str) -> Handle[R]:
    return Handle(task.app, await _find_id(task.app, task.base, key), task)


async def _to_handle(task: Task[..., R], id_: Awaitable[UUID]) -> Handle[R]:
    return Handle(task.app, await id_, task)


async def _find_id(app: App, base: str, key: str) -> UUID:
    execution = await (await app.engine()).executions.find(key=key)
    if execution.kind.partition("@")[0] != base:
        message = f"the key {key!r} belongs to execution {execution.id} of {execution.kind!r}, not of {base!r}"
        raise NotFound("execution_not_found", message, execution_id=execution.id, key=key)
    return execution.id


@awaited_as("Task.run")
async def _run(task: Task[..., R], submission: Submission) -> R:
    engine = await task.app.engine()
    waiting, key = _waiting_runs(), object()
    waiting[key] = time.monotonic(), task.app, engine, submission
    try:
        id_, outcome = await results.run_to_end(engine, submission)
    finally:
        del waiting[key]
    if outcome.state is State.COMPLETED:
        return task.result_codec.restore(outcome.result or b"null")
    value: R = (await results.read_end(engine, id_, outcome, task, task.result_codec)).value()
    return value


# A program that waits for a result is often started without a worker. Then it would wait without a message.


_log = logging.getLogger("flowfabric.app")
_WARN_AFTER_S = 5.0
_TIMER_ERROR_S = 0.005
_MAX_WARNED = 1_000
_warned: WeakKeyDictionary[App, set[tuple[str, str]]] = WeakKeyDictionary()
_checks: set[asyncio.Task[None]] = set()
_Runs: TypeAlias = dict[object, tuple[float, "App", "Engine", Submission]]
# The waiting runs of each event loop with the time of their start, the oldest first. All runs of a loop share a timer.
_waiting: dict[asyncio.AbstractEventLoop, _Runs] = {}


def _waiting_runs() -> _Runs:
    """Return the waiting runs of the running loop. Those that wait for some seconds are checked."""
    loop = asyncio.get_running_loop()
    waiting = _waiting.get(loop)
    if waiting is None:
        # Threads with event loops of their own change this table too.
        for closed in [other for other in list(_waiting) if other.is_closed()]:
            _waiting.pop(closed, None)
        waiting = _waiting[loop] = {}
        loop.call_later(_WARN_AFTER_S, _check_late_runs, loop, context=Context())
    return waiting


def _check_late_runs(loop: asyncio.AbstractEventLoop) -> None:
    """Look for workers for the runs that have waited for long, once per kind and lane. Do so again while runs wait."""
    waiting, began_until = _waiting[loop], time.monotonic() - _WARN_AFTER_S + _TIMER_ERROR_S
    late = [run for run in waiting.values() if run[0] <= began_until]
    kinds = {(app, submission.kind, submission.lane): (engine, submission) for _, app, engine, submission in late}
    for (app, _, _), (engine, submission) in kinds.items():
        check = loop.create_task(_check_workers(app, engine, submission))
        _checks.add(check)
        check.add_done_callback(_checks.discard)
    if waiting:
        loop.call_later(_WARN_AFTER_S, _check_late_runs, loop, context=Context())
    else:
        del _waiting[loop]


async def _check_workers(app: App, engine: Engine, submission: Submission) -> None:
    kind, lane = submission.kind, submission.lane
    warned = _warned.setdefault(app, set())
    is_later = submission.delay is not None or submission.ready_at is not None
    if is_later or (kind, lane) in warned or len(warned) >= _MAX_WARNED:
        return
    with suppress(FlowFabricError):
        page = await engine.workers.list(lane=lane, limit=validation.MAX_BATCH)
        missing = find_missing_worker(lane, kind, tuple(submission.requires), page.items)
        if missing is not None and page.next_cursor is None and (kind, lane) not in warned:
            warned.add((kind, lane))
            reason = f"{missing.sentence}; start a worker of its app: flowfabric worker MODULE:APP"
            fields = {"task": kind, "namespace": engine.namespace}
            _log.warning("%s has been waiting for %g s: %s", kind, _WARN_AFTER_S, reason, extra=fields)


async def _submit_in_transaction(engine: Engine, connection: object, submission: Submission) -> Submitted:
    try:
        return await engine.executions.submit_in_transaction(connection, submission)
    except InvalidRequest as error:
        if error.code != "connection_not_async":
            raise
    return engine.executions.submit_in_transaction_sync(connection, submission)


@awaited_as("App.submit_many")
async def _submit_many(app: App, calls: Sequence[Call[R]], submissions: Sequence[Submission]) -> list[Handle[R]]:
    engine = await app.engine()
    outcomes: list[Submitted | FlowFabricError] = []
    for start in range(0, len(submissions), validation.MAX_BATCH):
        outcomes += await _submit_batch(engine, submissions[start : start + validation.MAX_BATCH])
    refused = [outcome for outcome in outcomes if isinstance(outcome, FlowFabricError)]
    if refused:
        raise ExceptionGroup(f"{len(refused)} of {len(outcomes)} calls were refused; the others are stored", refused)
    return [
        Handle(app, outcome.id, call.task)
        for outcome, call in zip(outcomes, calls, strict=True)
        if not isinstance(outcome, FlowFabricError)
    ]


async def _submit_batch(engine: Engine, submissions: Sequence[Submission]) -> list[Submitted | FlowFabricError]:
    """Store one batch.

    Calls with a key or declared signals cannot share a statement. Submit them concurrently, so that they can at least
    share commits.
    """
    if not any(submission.key is not None or submission.signals for submission in submissions):
        return await engine.executions.submit_many(submissions)
    return await asyncio.gather(*(_submit_or_error(engine, submission) for submission in submissions))


async def _submit_or_error(engine: Engine, submission: Submission) -> Submitted | FlowFabricError:
    try:
        return await engine.executions.submit(submission)
    except FlowFabricError as error:
        return error


def _submit_children(calls: Sequence[Call[R]]) -> Durable[list[Handle[R]]]:
    from flowfabric.runtime.calls.children import submit_child
    from flowfabric.runtime.calls.groups import gather

    return _to_list(gather(*[submit_child(call.task, call.args, call.kwargs) for call in calls]))


@awaited_as("App.submit_many")
async def _to_list(calls: Durable[tuple[Handle[R], ...]]) -> list[Handle[R]]:
    return list(await calls)


def _validate_calls(app: App, calls: Iterable[Call[R]]) -> list[Call[R]]:
    from flowfabric.app.task import Call

    valid_calls = list(calls)
    for call in valid_calls:
        if not isinstance(call, Call):
            message = f"submit_many takes calls described by task.call(…), not {type(call).__name__}"
            raise InvalidRequest("invalid_type", message, field="calls")
        if call.task.app is not app:
            raise InvalidRequest("other_app", f"{call.task.name} is a task of another app", kind=call.task.name)
    return valid_calls


def _with_key(task: Task[..., Any], submission: Submission) -> Submission:
    """Add the key from the call options to the submission.

    Without a key inside a step, add a key that is the same in every try of the step.
    """
    key = idempotency_key("submit", task.call_options.key)
    return submission if key is None else replace(submission, key=key)


def _refuse_connection(task: Task[..., Any], why: str) -> None:
    if task.call_options.connection is not None:
        raise InvalidRequest("within_not_possible", f"connection= cannot be used here: {why}", kind=task.name)
