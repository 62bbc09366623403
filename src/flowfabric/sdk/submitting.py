"""Storing executions: one or many, for themselves, as children, or in a transaction of the caller's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flowfabric.core import limits
from flowfabric.core.errors import FlowFabricError, InvalidRequest
from flowfabric.core.outcomes import Submitted
from flowfabric.core.requests import Submission
from flowfabric.sdk import effects, results, units
from flowfabric.sdk.aliases import Durable, P, R
from flowfabric.sdk.client_thread import wait_for
from flowfabric.sdk.handles import Handle

if TYPE_CHECKING:
    from flowfabric.engine.engine import Engine
    from flowfabric.sdk.app import App
    from flowfabric.sdk.tasks import Call, Task


def submit(task: Task[P, R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Durable[Handle[R]]:
    """Stores an execution: a child inside of a task, one for itself anywhere else."""
    if effects.is_in_task():
        from flowfabric.sdk.children import submit_child

        _refuse_within(task, "a child is stored together with the record of it")
        return submit_child(task, args, kwargs)
    return _stored(task.newest, _keyed(task, task.submission(args, kwargs)))


def submit_here(task: Task[P, R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Handle[R]:
    """Stores an execution from plain code. A transaction to be stored in is used on the thread that it belongs to."""
    if task.called.within is None or (units.UNIT.get() is not None and units.in_step() is None):
        return wait_for(lambda: submit(task, args, kwargs))
    submission = _keyed(task, task.submission(args, kwargs))
    engine = wait_for(task.app.engine)
    return Handle(task.app, engine.executions.submit_within_sync(task.called.within, submission).id, task.newest)


def run(task: Task[P, R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Durable[R]:
    """Stores an execution and waits for its result."""
    _refuse_within(task, "nobody can run it before that transaction is committed; submit it and wait afterwards")
    if units.unit() is not None:
        from flowfabric.sdk.children import run_child

        return run_child(task, args, kwargs)
    return _finished(task.newest, _keyed(task, task.submission(args, kwargs)))


def described(task: Task[P, R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call[R]:
    """A call with its inputs checked."""
    from flowfabric.sdk.tasks import Call

    _refuse_within(task, "many calls are stored in batches of their own")
    submission = task.submission(args, kwargs)
    if task.called.key is not None:
        submission = replace(submission, key=task.called.key)
    return Call(task.newest, args, kwargs, submission)


def submit_many(app: App, calls: Iterable[Call[R]]) -> Durable[list[Handle[R]]]:
    """Stores all calls, in batches; inside of a task as its children."""
    wanted = _checked(app, calls)
    if effects.is_in_task():
        return _children(wanted)
    if units.in_step() is not None:
        return _many(app, wanted, [_keyed(call.task, call.submission) for call in wanted])
    return _many(app, wanted, [call.submission for call in wanted])


async def _stored(task: Task[..., R], submission: Submission) -> Handle[R]:
    engine = await task.app.engine()
    if task.called.within is not None:
        answer = await _joined(engine, task.called.within, submission)
    else:
        answer = await _submitted(engine, submission)
    return Handle(task.app, answer.id, task)


async def _finished(task: Task[..., R], submission: Submission) -> R:
    engine = await task.app.engine()
    id_, outcome = await results.run_to_end(engine, submission)
    value: R = (await results.read_end(engine, id_, outcome, task, task.result_form)).value()
    return value


async def _joined(engine: Engine, connection: object, submission: Submission) -> Submitted:
    try:
        return await engine.executions.submit_within(connection, submission)
    except InvalidRequest as error:
        if error.code != "connection_not_async":
            raise
    return engine.executions.submit_within_sync(connection, submission)


async def _many(app: App, calls: Sequence[Call[R]], submissions: Sequence[Submission]) -> list[Handle[R]]:
    engine = await app.engine()
    answers: list[Submitted | FlowFabricError] = []
    for start in range(0, len(submissions), limits.BATCH):
        answers += await _batch(engine, submissions[start : start + limits.BATCH])
    refused = [answer for answer in answers if isinstance(answer, FlowFabricError)]
    if refused:
        raise ExceptionGroup(f"{len(refused)} of {len(answers)} calls were refused; the others are stored", refused)
    return [
        Handle(app, answer.id, call.task)
        for answer, call in zip(answers, calls, strict=True)
        if not isinstance(answer, FlowFabricError)
    ]


async def _batch(engine: Engine, submissions: Sequence[Submission]) -> list[Submitted | FlowFabricError]:
    """The answers of one batch. What cannot share a statement goes side by side and so shares commits at least."""
    if not any(item.key is not None or item.signals for item in submissions):
        return await engine.executions.submit_many(submissions)
    return await asyncio.gather(*(_answered(engine, item) for item in submissions))


async def _answered(engine: Engine, submission: Submission) -> Submitted | FlowFabricError:
    try:
        return await _submitted(engine, submission)
    except FlowFabricError as error:
        return error


async def _submitted(engine: Engine, submission: Submission) -> Submitted:
    return await engine.executions.submit(submission)


def _children(calls: Sequence[Call[R]]) -> Durable[list[Handle[R]]]:
    from flowfabric.sdk.children import submit_child
    from flowfabric.sdk.groups import gather

    return _listed(gather(*[submit_child(call.task, call.args, call.kwargs) for call in calls]))


async def _listed(calls: Durable[tuple[Handle[R], ...]]) -> list[Handle[R]]:
    return list(await calls)


def _checked(app: App, calls: Iterable[Call[R]]) -> list[Call[R]]:
    from flowfabric.sdk.tasks import Call

    wanted = list(calls)
    for call in wanted:
        if not isinstance(call, Call):
            message = f"submit_many takes calls described by task.call(…), not {type(call).__name__}"
            raise InvalidRequest("invalid_type", message, field="calls")
        if call.task.app is not app:
            raise InvalidRequest("other_app", f"{call.task.name} is a task of another app", kind=call.task.name)
    return wanted


def _keyed(task: Task[..., Any], submission: Submission) -> Submission:
    """With the caller's key; without one, in a step, with one that is equal in every try."""
    key = effects.keyed("submit", task.called.key)
    return submission if key is None else replace(submission, key=key)


def _refuse_within(task: Task[..., Any], why: str) -> None:
    if task.called.within is not None:
        raise InvalidRequest("within_not_possible", f"within= does not go here: {why}", kind=task.name)
