"""The function of a task being run: a coroutine on the worker's loop, or a plain function in one of its threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowfabric.sdk.errors import InputMismatch
from flowfabric.sdk.units import UNIT, Unit

if TYPE_CHECKING:
    from flowfabric.sdk.run import Run

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a body was left: with a value, or by an error."""

    value: Any = None
    error: BaseException | None = None


async def run_body(run: Run, unit: Unit) -> Ending:
    """Runs the body from its top to its end, whatever that is."""
    try:
        arguments = await _arguments(run)
    except InputMismatch as error:
        run.mismatch = error
        return Ending()
    if run.is_over:
        return Ending()
    body = _start(run, unit, arguments)
    left = run.dropped = run.loop.create_future()
    body.add_done_callback(lambda _: _finish(left))
    try:
        await left
    except asyncio.CancelledError:
        # Whoever performs the run has given it up; the body must not go on by itself.
        run.abandon()
        raise
    if not body.done():
        return Ending()
    unit.task = None
    return ending_of(body)


def ending_of(body: asyncio.Future[Ending]) -> Ending:
    """How a body or a branch was left; one that was cancelled before it began was left by that."""
    return Ending(error=asyncio.CancelledError()) if body.cancelled() else body.result()


def drop(run: Run) -> None:
    """Stops waiting for a body that does not leave."""
    if run.dropped is not None:
        run.loop.call_soon_threadsafe(_finish, run.dropped)


def cancel_code(run: Run, units: set[Unit]) -> None:
    """Cancels what branches are about: steps that run, and other code that awaits something of its own. Code that is
    parked, or is running just now, is told by its durable call."""
    busy = {*run.in_flight, asyncio.current_task()}
    for task, unit in list(run.in_flight.items()):
        if unit in units:
            task.cancel()
    for unit in units.difference(run.resting.parked.values()):
        if unit.group is not None:
            unit.group.cancel_code()
        elif unit.task is not None and unit.task not in busy and not unit.is_plain:
            unit.task.cancel()


def _finish(left: asyncio.Future[None]) -> None:
    if not left.done():
        left.set_result(None)


def start_branch(unit: Unit, body: Callable[[], Any]) -> asyncio.Task[Ending]:
    """A coroutine function being run as a branch of its own."""
    context = Context()
    context.run(UNIT.set, unit)
    unit.task = unit.run.loop.create_task(_awaited(body), context=context)
    return unit.task


def _start(run: Run, unit: Unit, arguments: Arguments) -> asyncio.Future[Ending]:
    args, kwargs = arguments
    if run.task.is_async:
        return start_branch(unit, lambda: run.task.fn(*args, **kwargs))
    work = run.threads.tasks.submit(Context().run, returned, unit, lambda: run.task.fn(*args, **kwargs))
    return asyncio.wrap_future(work)


async def _awaited(body: Callable[[], Any]) -> Ending:
    try:
        return Ending(await body())
    except BaseException as error:
        return Ending(error=error)


def returned(unit: Unit, body: Callable[[], Any]) -> Ending:
    """How a plain function was left that is run in this thread."""
    UNIT.set(unit)
    unit.thread = threading.get_ident()
    try:
        return Ending(body())
    except BaseException as error:
        return Ending(error=error)


async def _arguments(run: Run) -> Arguments:
    """The stored input; that of a flow's member with the results of its upstreams in their places."""
    from flowfabric.sdk.flow_inputs import resolve_inputs

    return await resolve_inputs(run)
