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
    body = _start(run, unit, arguments)
    left = run.dropped = run.loop.create_future()
    body.add_done_callback(lambda _: _finish(left))
    await left
    if not body.done():
        return Ending()
    unit.task = None
    return body.result()


def drop(run: Run) -> None:
    """Stops waiting for a body that does not leave."""
    if run.dropped is not None:
        run.loop.call_soon_threadsafe(_finish, run.dropped)


def _finish(left: asyncio.Future[None]) -> None:
    if not left.done():
        left.set_result(None)


def start_branch(unit: Unit, body: Callable[[], Any]) -> asyncio.Task[Ending]:
    """A coroutine function being run as a branch of its own."""
    context = Context()
    context.run(UNIT.set, unit)
    unit.task = unit.run.loop.create_task(_awaited(body), context=context)
    return unit.task


def start_thread(unit: Unit, body: Callable[[], Any]) -> asyncio.Future[Ending]:
    """A plain function being run as a branch, in a thread that nobody else waits for."""
    ending: asyncio.Future[Ending] = unit.run.loop.create_future()

    def work() -> None:
        found = _returned(unit, body)
        unit.run.loop.call_soon_threadsafe(ending.set_result, found)

    context = Context()
    threading.Thread(target=context.run, args=(work,), name="flowfabric-branch", daemon=True).start()
    return ending


def _start(run: Run, unit: Unit, arguments: Arguments) -> asyncio.Future[Ending]:
    args, kwargs = arguments
    if run.task.is_async:
        return start_branch(unit, lambda: run.task.fn(*args, **kwargs))
    work = run.threads.tasks.submit(Context().run, _returned, unit, lambda: run.task.fn(*args, **kwargs))
    return asyncio.wrap_future(work)


async def _awaited(body: Callable[[], Any]) -> Ending:
    try:
        return Ending(await body())
    except BaseException as error:
        return Ending(error=error)


def _returned(unit: Unit, body: Callable[[], Any]) -> Ending:
    UNIT.set(unit)
    unit.thread = threading.get_ident()
    try:
        return Ending(body())
    except BaseException as error:
        return Ending(error=error)


async def _arguments(run: Run) -> Arguments:
    """The stored input; that of a flow's member with the results of its upstreams in their places."""
    from flowfabric.sdk.flow_inputs import resolve_inputs

    return await resolve_inputs(run.engine, run.lease, run.task)
