"""Sagas: what was done is undone, newest first, if the rest fails or a cancel is requested."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from flowfabric.sdk.aliases import P
from flowfabric.sdk.steps import step
from flowfabric.sdk.undoing import Undoing
from flowfabric.sdk.units import require_unit


class Undo:
    """What is to be undone, in the order in which it was done."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], Any]] = []

    def add(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Undoes what was just done by calling this function, as a step, if it comes to that."""
        self._calls.append(lambda: step(fn, *args, **kwargs))

    @property
    def is_needed(self) -> bool:
        """True if there is something to undo."""
        return bool(self._calls)

    async def everything(self) -> list[Exception]:
        """Undoes it, newest first; answers what could not be undone."""
        failed: list[Exception] = []
        while self._calls:
            try:
                await self._calls.pop()()
            except Exception as error:
                failed.append(error)
        return failed


class Saga:
    """Undoes what was added to it if its block is left by a failure or by a request to cancel. A suspension is
    neither."""

    def __init__(self) -> None:
        self._undo = Undo()
        self._undoing: Undoing | None = None

    async def __aenter__(self) -> Undo:
        self._undoing = Undoing(require_unit("saga"))
        return self._undo

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._undoing is not None, "a block is entered before it is left"
        cause = await self._undoing.cause(error, is_needed=self._undo.is_needed)
        if cause is None:
            return
        failed = await self._undo.everything()
        if failed:
            raise BaseExceptionGroup("not everything could be undone", [cause, *failed])
        if cause is not error:
            raise cause


def saga() -> Saga:
    """`async with saga() as undo`: add to `undo` how to take back each step that was done."""
    return Saga()
