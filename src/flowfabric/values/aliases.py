"""Type variables, type aliases and names that the public API uses."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeAlias, TypeVar

from flowfabric.core import validation

F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)

Duration: TypeAlias = validation.Duration
# `Durable` must be exactly `Coroutine` with these arguments. With Any instead of None, overloads such as those of
# `gather` become ambiguous, and mypy infers Any. With a subclass of Coroutine, mypy does not report a missing await.
Durable: TypeAlias = Coroutine[None, None, T]
Async: TypeAlias = Callable[P, Coroutine[Any, Any, T]]


def awaited_as(name: str) -> Callable[[F], F]:
    """Name a coroutine function after the public method that returns its coroutines.

    Python's warning about a forgotten `await` then names that method: "coroutine 'Task.submit' was never awaited".
    """

    def rename(fn: F) -> F:
        fn.__qualname__ = name
        return fn

    return rename
