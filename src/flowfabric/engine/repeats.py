"""Repeats of calls whose connection broke.

If a connection breaks before the reply, the caller cannot know whether the call took effect. The engine knows the ids
that it minted for the call, so it repeats the call with the same ids, on a new connection and for a limited time.

    run ──> outcome
     │ connection lost, or none could be opened
     └──> pause ──> run again with the same request ──> … ──> outcome, or the error after `retry_for`

Only a lost connection is repeated, which includes a server that restarts, and a server without a free connection. A
refusal, a statement that took too long and a full disk are not. Some operations are not safe to repeat once they were
sent, such as a claim. They are repeated only if no connection could be opened, so that nothing was sent.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from datetime import datetime
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from flowfabric.core.errors import Unavailable
from flowfabric.store.ports import Body, SharedBody, Store

LOST_CODES = frozenset({"connection_lost", "server_unreachable", "too_many_connections"})
_INITIAL_PAUSE_S = 0.02
_MAX_PAUSE_S = 0.5
Result = TypeVar("Result")


class RepeatingStore:
    """Runs bodies on a store, and repeats those whose connection broke.

    All calls of one object share one time limit. It starts with the first broken connection, or ends at `stop_at`. With
    `only_unsent`, a body is repeated only if nothing of it was sent to the store.
    """

    __slots__ = ("_only_unsent", "_retry_for_s", "_stop_at", "_store")

    def __init__(
        self, store: Store, retry_for_s: float, *, stop_at: float | None = None, only_unsent: bool = False
    ) -> None:
        self._store = store
        self._retry_for_s = retry_for_s
        self._stop_at = stop_at
        self._only_unsent = only_unsent

    async def run(self, body: Body[Result], *, is_urgent: bool = False) -> Result:
        """Run `body` in one write transaction."""
        run = partial(self._store.run, is_urgent=True) if is_urgent else self._store.run
        return await self._call(run, body)

    async def run_shared(self, body: SharedBody[Result]) -> Result:
        """Run a `body` that calls user code."""
        return await self._call(self._store.run_shared, body)

    async def run_single(self, body: Body[Result], *, is_urgent: bool = False) -> Result:
        """Run a `body` that needs no explicit transaction."""
        run = partial(self._store.run_single, is_urgent=True) if is_urgent else self._store.run_single
        # A single statement may rely on ids that exist nowhere yet. After a lost reply they may exist.
        repeat = partial(self._store.run, is_urgent=True) if is_urgent else self._store.run
        return await self._call(run, body, repeat)

    async def read(self, body: Body[Result]) -> Result:
        """Run a `body` that only reads."""
        return await self._call(self._store.read, body)

    async def read_single(self, body: Body[Result]) -> Result:
        """Run a `body` that runs exactly one reading statement."""
        return await self._call(self._store.read_single, body)

    async def _call(
        self,
        run: Callable[[Any], Coroutine[Any, Any, Result]],
        body: Any,
        repeat: Callable[[Any], Coroutine[Any, Any, Result]] | None = None,
    ) -> Result:
        try:
            return await run(body)
        except Unavailable as error:
            if not self._can_repeat(error):
                raise
            first_error = error
        return await self._repeat(repeat or run, body, first_error)

    async def _repeat(
        self, run: Callable[[Any], Coroutine[Any, Any, Result]], body: Any, first_error: Unavailable
    ) -> Result:
        began = time.monotonic()
        if self._stop_at is None:
            self._stop_at = began + self._retry_for_s
        pause_s, was_sent, error = _INITIAL_PAUSE_S, is_sent(first_error), first_error
        while time.monotonic() < self._stop_at and self._can_repeat(error):
            await asyncio.sleep(random.uniform(pause_s / 2, pause_s))
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
            try:
                return await run(body)
            except Unavailable as next_error:
                error = next_error
                was_sent = was_sent or is_sent(error)
        raise _final_error(error, time.monotonic() - began, was_sent=was_sent) from error

    def _can_repeat(self, error: Unavailable) -> bool:
        is_allowed = not self._only_unsent or not is_sent(error)
        return is_allowed and error.code in LOST_CODES and self._retry_for_s > 0


def is_sent(error: Unavailable) -> bool:
    """Return False if the call failed before anything was sent to the store."""
    return bool(error.fields.get("sent", True))


def with_ids(error: Unavailable, **ids: UUID | datetime) -> Unavailable:
    """Return a copy of the error that carries these ids or times, and explains how to repeat the call with them."""
    values = ", ".join(f"{name}={id_}" for name, id_ in ids.items())
    message = f"{error.message}; when you repeat it, pass {values}, so that the call has only one effect"
    copy = Unavailable(error.code, message, **{**error.fields, **ids})
    copy.__cause__ = error
    return copy


def _final_error(error: Unavailable, took_s: float, *, was_sent: bool) -> Unavailable:
    fields = {name: value for name, value in error.fields.items() if name != "sent" or not was_sent}
    doubt = "; an earlier try may have taken effect" if was_sent and not is_sent(error) else ""
    return Unavailable(error.code, f"{error.message}; the engine repeated it for {took_s:.1f} s{doubt}", **fields)
