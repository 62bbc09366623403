"""The engines of an app: one for each event loop, opened when it is first asked for.

What an engine is made of is imported then too: a program that only declares tasks, or prints its help, starts sooner.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from contextvars import Context
from typing import TYPE_CHECKING, Unpack

from flowfabric.core.errors import InvalidRequest

if TYPE_CHECKING:
    from flowfabric.engine.connecting import Connecting, StoreOptions
    from flowfabric.engine.engine import Engine

_Loop = asyncio.AbstractEventLoop


class _Forks:
    """How many forks lie between this process and the first one. To ask the system for that takes a call each time."""

    number = 0

    @classmethod
    def count(cls) -> None:
        cls.number += 1


os.register_at_fork(after_in_child=_Forks.count)


class Engines:
    """Opens engines on one store. A connection belongs to the loop and the process that opened it, so every loop has an
    engine of its own, and a forked child begins with none."""

    def __init__(self, namespace: str, options: StoreOptions) -> None:
        self._namespace = namespace
        self._options = options
        self._begin()

    def _begin(self) -> None:
        self._forks = _Forks.number
        self._opening: dict[_Loop, asyncio.Task[Engine]] = {}
        self._open: dict[_Loop, AsyncGenerator[Engine, None]] = {}
        self._adopted: dict[_Loop, Engine] = {}
        self._ready: dict[_Loop, Engine] = {}

    def told(self, **given: Unpack[StoreOptions]) -> None:
        """Opens engines with these options too; what the app itself says otherwise is refused."""
        for name, value in given.items():
            own = self._options.get(name, value)
            if own != value:
                message = f"the app itself says {name}={own!r}; leave out what says {value!r}"
                raise InvalidRequest("other_option", message, field=name)
        self._options = checked_options({**self._options, **given})

    def connecting(self, store: str, **instead: Unpack[StoreOptions]) -> Connecting:
        """An engine to be opened as the app says, but for what is said here."""
        from flowfabric.engine.connecting import connect

        options: StoreOptions = {**self._options, **instead}
        return connect(store, namespace=self._namespace, **options)

    async def here(self, store: str) -> Engine:
        """The engine of the running loop. It is closed by `close`, or by the loop when that ends."""
        loop = asyncio.get_running_loop()
        ready = self._adopted.get(loop) or self._ready.get(loop)
        if ready is not None and self._forks == _Forks.number:
            return ready
        self._forget()
        if loop not in self._opening:
            # What the engine starts is nobody's: it must not carry on with the context of whoever came first.
            self._opening[loop] = loop.create_task(self._opened(loop, store), context=Context())
        opening = self._opening[loop]
        try:
            # Whoever gives up waiting does not take the engine away from the others.
            return await asyncio.shield(opening)
        except BaseException:
            if opening.done() and (opening.cancelled() or opening.exception()):
                self._opening.pop(loop, None)
            raise

    def adopt(self, engine: Engine | None) -> None:
        """From now on this engine is the running loop's, or again one that is opened; closing it is its owner's."""
        self._forget()
        loop = asyncio.get_running_loop()
        if engine is None:
            self._adopted.pop(loop, None)
        else:
            self._adopted[loop] = engine

    @property
    def is_adopted(self) -> bool:
        """True while the running loop's engine is somebody else's."""
        return asyncio.get_running_loop() in self._adopted

    async def close(self) -> None:
        """Closes the engine that was opened for the running loop; the next call opens another."""
        loop = asyncio.get_running_loop()
        self._opening.pop(loop, None)
        self._ready.pop(loop, None)
        opened = self._open.pop(loop, None)
        if opened is not None:
            await opened.aclose()

    async def _opened(self, loop: _Loop, store: str) -> Engine:
        opened = _kept_open(self.connecting(store))
        engine = await anext(opened)
        self._open[loop] = opened
        self._ready[loop] = engine
        return engine

    def _forget(self) -> None:
        """Forgets loops that have ended, and after a fork everything: closing what the parent opened would close the
        parent's connections."""
        if self._forks != _Forks.number:
            self._begin()
        for known in (self._opening, self._open, self._adopted, self._ready):
            # Another thread may come or go with its loop meanwhile.
            for loop in [loop for loop in list(known) if loop.is_closed()]:
                known.pop(loop, None)


async def _kept_open(connecting: Connecting) -> AsyncGenerator[Engine, None]:
    """The engine, open until the generator is closed. A loop closes its generators when it ends, so a program that
    never says `async with app` leaves nothing open either."""
    async with connecting as engine:
        yield engine


def checked_options(options: object) -> StoreOptions:
    """Options that `connect` takes; what is wrong with them is said where the app is made, not where it is used."""
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        message = f"options must be a mapping, not {type(options).__name__}"
        raise InvalidRequest("invalid_type", message, field="options")
    from flowfabric.engine.connecting import StoreOptions, connect

    unknown = sorted(str(name) for name in options.keys() - StoreOptions.__annotations__.keys())
    if unknown:
        known = ", ".join(StoreOptions.__annotations__)
        message = f"options has no {', '.join(unknown)}; there are {known}"
        raise InvalidRequest("invalid_choice", message, field="options")
    found = StoreOptions(**options)  # type: ignore[typeddict-item]
    _ = connect(":memory:", **found)
    return found
