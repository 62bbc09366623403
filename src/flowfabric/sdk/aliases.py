"""The words that signatures are written in."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeAlias, TypeVar

from flowfabric.core import limits

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)

Duration: TypeAlias = limits.Duration
# Nothing less exact will do: with Any in the place of None, overloads such as those of `gather` become ambiguous and
# answer Any; and mypy misses a forgotten await only of a Coroutine itself, not of a class that is one.
Durable: TypeAlias = Coroutine[None, None, T]
Async: TypeAlias = Callable[P, Coroutine[Any, Any, T]]
