"""Type variables and type aliases that the signatures of the public API use."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeAlias, TypeVar

from flowfabric.core import validation

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)

Duration: TypeAlias = validation.Duration
# `Durable` must be exactly `Coroutine` with these arguments. With Any instead of None, overloads such as those of
# `gather` become ambiguous, and mypy infers Any. With a subclass of Coroutine, mypy does not report a missing await.
Durable: TypeAlias = Coroutine[None, None, T]
Async: TypeAlias = Callable[P, Coroutine[Any, Any, T]]
