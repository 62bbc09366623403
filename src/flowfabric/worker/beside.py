"""What goes on beside the work: leases are renewed and the event loop is watched, from another thread if possible."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from flowfabric.engine.engine import Engine
from flowfabric.worker.blocked_loop import LoopWatch
from flowfabric.worker.ledger import Ledger
from flowfabric.worker.renewal import Opening, Renewal, Report
from flowfabric.worker.side_thread import SideThread

_CLOSE_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Care:
    """The leases to look after, their term, and who hears what becomes of them, in the worker's loop."""

    ledger: Ledger
    ttl_s: float
    hear: Callable[[Report], None]


@asynccontextmanager
async def beside(engine: Engine, opening: Opening | None, care: Care) -> AsyncIterator[None]:
    """Renews and watches while the block lasts. Without an `opening` the engine at hand renews, in this loop."""
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        jobs = [LoopWatch(loop).run]
        if opening is None:
            renewal = Renewal(care.ledger, care.ttl_s, lambda: _lent(engine), care.hear)
            await stack.enter_async_context(in_background(renewal.run()))
        else:
            tell = _telling(loop, care.hear)
            jobs.append(Renewal(care.ledger, care.ttl_s, opening, tell).run)
        thread = SideThread(jobs)
        stack.push_async_callback(thread.close, _CLOSE_WITHIN_S)
        thread.start()
        yield


@asynccontextmanager
async def in_background(job: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs a job that never ends while the block lasts."""
    task = asyncio.create_task(job)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def _lend(engine: Engine) -> AsyncIterator[Engine]:
    yield engine


def _lent(engine: Engine) -> AbstractAsyncContextManager[Engine]:
    return _lend(engine)


def _telling(loop: asyncio.AbstractEventLoop, hear: Callable[[Report], None]) -> Callable[[Report], None]:
    def tell(report: Report) -> None:
        with suppress(RuntimeError):  # The worker's loop is closed: nobody hears it any more.
            loop.call_soon_threadsafe(hear, report)

    return tell
