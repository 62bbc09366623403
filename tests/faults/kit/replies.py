"""A store that loses replies or connections on purpose, so that both backends can be tested in the same way.

PostgreSQL also has the proxy, which breaks real connections. SQLite has no connections that can break, but the engine
must treat this store in the same way on both backends.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

from flowfabric.engine import Engine, Unavailable
from flowfabric.reconcilers.loop import Reconcilers

# Returns "request" if a call gets lost before it reaches the store, "reply" if it gets lost afterwards, or None.
Losing = Callable[[], str | None]


class LosingStore:
    """Wraps a store. `losing` decides about each call, and `lost` counts the calls that it lost."""

    def __init__(self, store: Any, losing: Losing) -> None:
        self._store = store
        self._losing = losing
        self.lost = 0
        self.calls = 0

    async def run(self, body: Any, **options: Any) -> Any:
        return await self._lose(partial(self._store.run, **options), body)

    async def run_shared(self, body: Any) -> Any:
        return await self._lose(self._store.run_shared, body)

    async def run_single(self, body: Any, **options: Any) -> Any:
        return await self._lose(partial(self._store.run_single, **options), body)

    async def read(self, body: Any) -> Any:
        return await self._lose(self._store.read, body)

    async def read_single(self, body: Any) -> Any:
        return await self._lose(self._store.read_single, body)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def _lose(self, run: Callable[[Any], Awaitable[Any]], body: Any) -> Any:
        self.calls += 1
        what = self._losing()
        if what == "request":
            self.lost += 1
            raise Unavailable("connection_lost", "no connection could be opened", sent=False)
        outcome = await run(body)
        if what == "reply":
            self.lost += 1
            raise Unavailable("connection_lost", "the connection was lost before the reply")
        return outcome


def losing_engine(engine: Engine, losing: Losing) -> tuple[Engine, LosingStore]:
    """Return an engine on the same store whose calls get lost, and its store. Its duties see the same losses."""
    context = engine._context
    store: Any = LosingStore(context.store, losing)
    duties = Reconcilers(store, context.wakeups, context.reconcilers._retention, context.vacuum)
    return Engine(replace(context, store=store, reconcilers=duties, batchers={})), store


def lose_each(*whats: str | None) -> Losing:
    """Return a function that decides about the next calls in this order. Later calls are not lost."""
    remaining = list(whats)
    return lambda: remaining.pop(0) if remaining else None


def lose_share(share: float, chance: random.Random) -> Losing:
    """Return a function that loses this share of the replies."""
    return lambda: "reply" if chance.random() < share else None
