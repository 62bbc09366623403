"""A link between one engine and its store that loses replies or breaks, on either backend.

SQLite has no network, so the link stands between the engine and the store's own calls. The proxy does the same for
PostgreSQL at the level of its protocol.

| control | effect |
|---|---|
| `drops_replies` | the store executes every call, and the caller gets no reply until `heal`, which breaks the call |
| `is_down` | every call fails immediately, and the store does not receive it |
| `heal()` | calls that wait for their reply fail, and everything passes from now on |
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

from flowfabric.engine import Engine, Unavailable

_POLL_S = 0.01
_CALLS = frozenset({"run", "run_shared", "run_single", "read", "read_single"})


class Link:
    """The controls of one link. All of them may be used from any thread."""

    def __init__(self) -> None:
        self.drops_replies = False
        self.is_down = False
        self.dropped = 0
        self.refused = 0
        self._heals = 0

    def heal(self) -> None:
        """Let everything pass from now on, and break the calls that wait for their reply."""
        self.drops_replies = self.is_down = False
        self._heals += 1

    async def pass_on(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Run a call of the store, and return its reply unless the link loses it."""
        if self.is_down:
            call.close()
            self.refused += 1
            raise _lost()
        heals = self._heals
        reply = await call
        if self.drops_replies:
            self.dropped += 1
            while self._heals == heals:  # noqa: ASYNC110 - the control may be used from another thread
                await asyncio.sleep(_POLL_S)
            raise _lost()
        return reply

    @asynccontextmanager
    async def opened(self, opening: AbstractAsyncContextManager[Engine]) -> AsyncIterator[Engine]:
        """Yield an engine whose calls pass through this link."""
        async with opening as engine:
            context = engine._context
            yield Engine(replace(context, store=_LinkedStore(context.store, self)))


class _LinkedStore:
    """A store whose calls pass through a link."""

    def __init__(self, store: Any, link: Link) -> None:
        self._store = store
        self._link = link

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in _CALLS:
            return method
        return lambda body, **options: self._link.pass_on(method(body, **options))


def _lost() -> Unavailable:
    return Unavailable("connection_lost", "the connection was lost; repeat the call")
