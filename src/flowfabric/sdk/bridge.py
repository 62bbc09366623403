"""Durable calls of plain functions: made in the thread of the task, performed on the worker's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from flowfabric.core.errors import InvalidRequest
from flowfabric.sdk.bodies import Ending
from flowfabric.sdk.durable import DurableCall
from flowfabric.sdk.units import STEP, UNIT, Unit

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Thunk(Generic[T]):
    """A plain function that is to be a branch of a group."""

    fn: Callable[[], T]


def branch(thunk: Callable[[], T]) -> Any:
    """A plain function as a branch of a group. `handle.result` is none: there is nothing to run but a wait, so it is
    waited for together with those of the other members, and holds no thread."""
    if not callable(thunk):
        message = f"a branch is a function without arguments, not {type(thunk).__name__}; write lambda: sync.step(…)"
        raise InvalidRequest("invalid_type", message)
    return _awaited_handle(thunk) or Thunk(thunk)


def _awaited_handle(thunk: Callable[[], Any]) -> Any:
    from flowfabric.sdk import sync_client

    handle = getattr(thunk, "__self__", None)
    return handle._inner if isinstance(handle, sync_client.Handle) and thunk == handle.result else None


def call(make: Callable[[], Awaitable[T]]) -> T:
    """The outcome of the durable call that `make` makes; the thread waits for it."""
    unit = _here()
    made = answer(make)
    performing = _performed(unit, made)
    if unit.stay is not None:
        ending = unit.stay.perform(performing)
    else:
        ending = asyncio.run_coroutine_threadsafe(performing, unit.run.loop).result()
    if ending.error is not None:
        raise ending.error
    value: T = ending.value
    return value


def answer(make: Callable[[], T]) -> T:
    """What a call answers that is not to be awaited."""
    unit = _here()
    unit.is_bridging = True
    try:
        made = make()
    finally:
        unit.is_bridging = False
    if unit.stay is not None and isinstance(made, DurableCall):
        unit.stay.made.append(made)
    return made


def _here() -> Unit:
    unit = UNIT.get()
    if unit is None:
        raise InvalidRequest("outside_of_task", "durable calls work inside of a task only")
    if STEP.get() is not None:
        raise InvalidRequest("durable_call_in_step", "a step cannot contain durable calls; call the function directly")
    if not unit.is_plain:
        raise InvalidRequest("sync_call_in_async_task", "this task is a coroutine: await flowfabric's async verb")
    if unit.stay is not None and unit.stay.has_left:
        raise unit.stay.leave_again()
    return unit


async def _performed(unit: Unit, made: Awaitable[Any]) -> Ending:
    unit.task = asyncio.current_task()
    try:
        return Ending(await made)
    except BaseException as error:
        return Ending(error=error)
