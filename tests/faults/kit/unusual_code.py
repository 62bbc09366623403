"""A table of unusual code: tasks that do what documentation forbids or nobody expects, and how they must end."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from flowfabric import App, PermanentError, StepFailed, gather, race, settle, sleep, step
from tests.faults.kit.hostile_errors import HOSTILE_ERRORS, make_error

COMPLETED, FAILED = "completed", "failed"
Body = Callable[[], Awaitable[Any]]


@dataclass(frozen=True)
class Unusual:
    """Unusual code, and the state in which its execution must end."""

    name: str
    body: Body
    end: str


class Unequal:
    """A value whose comparison raises."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("not comparable")

    __hash__ = None  # type: ignore[assignment]


class Unprintable:
    """A value whose texts raise."""

    def __repr__(self) -> str:
        raise ValueError("no text")

    __str__ = __repr__


class RaisingDict(dict[str, Any]):
    """A dict whose items raise."""

    def items(self) -> Any:
        raise ValueError("no items")

    keys = values = __iter__ = items


@dataclass
class RaisingField:
    """A dataclass whose field raises."""

    field: int = 1

    def __getattribute__(self, name: str) -> Any:
        if name == "field":
            raise ValueError("no field")
        return super().__getattribute__(name)


@dataclass
class RaisingEquality:
    """A dataclass whose comparison raises."""

    field: int = 1

    def __eq__(self, other: object) -> bool:
        raise ValueError("not comparable")

    __hash__ = None  # type: ignore[assignment]


def body_raises(name: str) -> Body:
    """Return a task that raises a hostile error."""

    async def body() -> None:
        await step(str, 1)
        raise make_error(name)

    return body


def step_raises(name: str) -> Body:
    """Return a task whose plain and async steps raise a hostile error, which the task catches."""

    def plain() -> None:
        raise make_error(name)

    async def coroutine() -> None:
        plain()

    async def body() -> None:
        for fn in (plain, coroutine):
            try:
                await step.options(retries=0)(fn)
            except StepFailed as failed:
                if failed.error.type != name:
                    raise

    return body


def branch_raises(name: str) -> Body:
    """Return a task whose branches raise a hostile error, which its groups handle."""

    async def branch() -> None:
        await asyncio.sleep(0)
        raise make_error(name)

    async def body() -> None:
        await settle(branch(), step(str, 1))
        assert (await race(branch(), step(str, 2))).index == 1
        await sleep(0.01)
        try:
            await gather(branch(), step(str, 3))
        except BaseException as error:
            if type(error) is not HOSTILE_ERRORS[name]:
                raise

    return body


def returns(value: Callable[[], Any]) -> Body:
    """Return a task that returns this value."""

    async def body() -> Any:
        return value()

    return body


def raises(error: Callable[[], BaseException]) -> Body:
    """Return a task that raises this error."""

    async def body() -> None:
        raise error()

    return body


def calls(fn: Callable[..., Any], *args: Any) -> Body:
    """Return a task that calls a function as a step."""

    async def body() -> None:
        await step(fn, *args)

    return body


def _chain(length: int) -> BaseException:
    error: BaseException = ValueError("first")
    for number in range(length):
        later = ValueError(str(number))
        later.__cause__ = error
        error = later
    return error


def _cycle() -> BaseException:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    return one


def _deep_group() -> BaseException:
    error: Exception = ValueError("inner")
    for number in range(200):
        error = ExceptionGroup(str(number), [error])
    return error


def _nested_list() -> list[Any]:
    value: list[Any] = []
    for _ in range(5_000):
        value = [value]
    return value


def _endless_list() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def _stop() -> None:
    raise StopIteration


def _exit() -> None:
    sys.exit(3)


async def _cancel_itself() -> None:
    raise asyncio.CancelledError


async def _swallow() -> str:
    try:
        await sleep(0.01)
    except BaseException:
        return "swallowed"
    return "slept"


async def _return_in_finally() -> str:
    try:
        await sleep(0.01)
    finally:
        return "finally"  # noqa: B012


async def _forget_to_await() -> None:
    _ = step(str, 1)


async def _await_twice() -> None:
    call = step(str, 1)
    await call
    await call


async def _step_in_step() -> None:
    async def inner() -> None:
        await step(str, 1)

    await step.options(retries=0)(inner)


OTHERS = (
    Unusual("returns a value that cannot be compared", returns(Unequal), FAILED),
    Unusual("returns a value without text", returns(Unprintable), FAILED),
    Unusual("returns a dict that raises", returns(lambda: RaisingDict(a=1)), COMPLETED),
    Unusual("returns a dataclass that raises", returns(RaisingField), FAILED),
    Unusual("returns a list in itself", returns(_endless_list), FAILED),
    Unusual("returns a list nested too deeply", returns(_nested_list), FAILED),
    Unusual("returns a lone surrogate", returns(lambda: "\ud800"), FAILED),
    Unusual("passes values that raise to a step", calls(lambda *_: None, Unequal(), Unprintable(), RaisingField()),
            COMPLETED),
    Unusual("passes a dict that raises to a step", calls(lambda *_: None, RaisingDict(a=1)), COMPLETED),
    Unusual("passes a list in itself to a step", calls(lambda *_: None, _endless_list()), COMPLETED),
    Unusual("calls a partial of a partial", calls(functools.partial(functools.partial(int, "11"), 2)), COMPLETED),
    Unusual("a step raises StopIteration", calls(_stop), FAILED),
    Unusual("a step exits", calls(_exit), FAILED),
    Unusual("a step cancels itself", calls(_cancel_itself), FAILED),
    Unusual("raises StopIteration", raises(StopIteration), FAILED),
    Unusual("raises GeneratorExit", raises(GeneratorExit), FAILED),
    Unusual("raises KeyboardInterrupt", raises(KeyboardInterrupt), FAILED),
    Unusual("raises CancelledError", raises(asyncio.CancelledError), FAILED),
    Unusual("raises MemoryError", raises(MemoryError), FAILED),
    Unusual("raises an error with 2,000 causes", raises(lambda: _chain(2_000)), FAILED),
    Unusual("raises an error that caused itself", raises(_cycle), FAILED),
    Unusual("raises deeply nested groups", raises(_deep_group), FAILED),
    Unusual("raises an error with 10 MB of text", raises(lambda: ValueError("x" * 10_000_000)), FAILED),
    Unusual("raises an error with NUL and surrogates", raises(lambda: ValueError("\0\ud800")), FAILED),
    Unusual("raises a permanent error without text", raises(PermanentError), FAILED),
    Unusual("swallows Unwind", _swallow, COMPLETED),
    Unusual("returns in finally", _return_in_finally, COMPLETED),
    Unusual("forgets to await a step", _forget_to_await, FAILED),
    Unusual("awaits a step twice", _await_twice, FAILED),
    Unusual("makes a step in a step", _step_in_step, FAILED),
)  # fmt: skip
UNUSUAL: tuple[Unusual, ...] = (
    *(Unusual(f"the body raises {name}", body_raises(name), FAILED) for name in HOSTILE_ERRORS),
    *(Unusual(f"a step raises {name}", step_raises(name), COMPLETED) for name in HOSTILE_ERRORS),
    *(Unusual(f"a branch raises {name}", branch_raises(name), COMPLETED) for name in HOSTILE_ERRORS),
    *OTHERS,
)


def register(app: App, unusual: Unusual) -> Any:
    """Return the task with this code."""

    @app.task(name=unusual.name.replace(" ", "-").replace(",", ""), retries=0)
    async def program() -> Any:
        return await unusual.body()

    return program
