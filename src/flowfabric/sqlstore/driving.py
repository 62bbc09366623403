"""Running a coroutine that never suspends, without an event loop."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar, cast

Answer = TypeVar("Answer")


def drive(coroutine: Coroutine[Any, Any, Answer]) -> Answer:
    """Runs the body of an operation to its end at once, which it does because its transaction never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return cast(Answer, done.value)
    coroutine.close()
    raise RuntimeError("an operation awaited something other than its transaction")
