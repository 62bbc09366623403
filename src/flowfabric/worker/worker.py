"""A worker: claims what it can perform, performs it, and leaves nothing behind when it stops.

    async with Worker(engine, performer) as worker:    # works from here on
        await worker.run()                             # … until somebody calls worker.stop()

Stopping: no more claims; what was not started is given back; what runs is asked to unwind and has the grace for it;
what still runs then is told that its lease is lost, and the lease is given back for it. No attempt is used up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from flowfabric.core import limits
from flowfabric.core.records import WorkerId
from flowfabric.engine.engine import Engine
from flowfabric.sdk.performing import Performer
from flowfabric.sdk.threads import ThreadPools
from flowfabric.worker.beside import Care, beside, in_background
from flowfabric.worker.claiming import Claiming, Offer
from flowfabric.worker.draining import drain
from flowfabric.worker.ledger import Ledger
from flowfabric.worker.performances import Performances
from flowfabric.worker.presence import Presence, new_worker_id
from flowfabric.worker.renewal import Opening
from flowfabric.worker.slots import Slots

_log = logging.getLogger("flowfabric.worker")
MOST_SLOTS = 10_000


class Worker:
    """Works on an engine's executions while its block lasts.

    `renewal` opens an engine of its own for the thread that renews leases, so that a blocked event loop loses none;
    without it they are renewed in the worker's loop, as they must be in a store with a single connection. `reconcile`
    runs the engine's reconcilers too; one worker of a process is enough for that. `threads` are for whoever performs
    plain functions; they are closed with the worker. `grace` is what leaving the block allows for what still runs.
    """

    def __init__(
        self, engine: Engine, performer: Performer, *, name: str | None = None, concurrency: int = 16,
        lanes: Sequence[str] = ("default",), capabilities: Collection[str] = (), lease_ttl: limits.Duration = 30,
        reconcile: bool = True, renewal: Opening | None = None, threads: ThreadPools | None = None,
        grace: limits.Duration = 30,
    ) -> None:  # fmt: skip
        ttl = limits.duration(lease_ttl, "lease_ttl", limits.LEASE_TTL_LEAST, limits.LEASE_TTL_MOST)
        slots = limits.whole(concurrency, "concurrency", 1, MOST_SLOTS)
        self._engine = engine
        self._offer = Offer(
            worker=new_worker_id(None if name is None else limits.name(name, "name")),
            lanes=limits.names(lanes, "lanes"), capabilities=limits.capabilities(capabilities, "capabilities"),
            lease_ttl=ttl, kinds=lambda: performer.kinds,
        )  # fmt: skip
        self._reconcile = limits.truth(reconcile, "reconcile")
        self._opening = renewal
        self._grace = limits.duration(grace, "grace")
        self.threads = ThreadPools(slots) if threads is None else threads
        self._ledger = Ledger()
        self._slots = Slots(slots, ttl.total_seconds())
        self._performances = Performances(engine, performer, self._slots, self._ledger)
        self._claiming = Claiming(engine, self._offer, self._slots, self._ledger, self._performances.take)
        self._presence = Presence(engine, self._offer, slots, lambda: self.busy)
        self._grace_over = asyncio.Event()
        self._stopped = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self._around = AsyncExitStack()

    @property
    def id(self) -> WorkerId:
        """The name of the worker and the instance that it is registered as."""
        return self._offer.worker

    @property
    def busy(self) -> int:
        """How many slots are in use."""
        return self._slots.busy

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.callback(self.threads.close)
            care = Care(self._ledger, self._offer.lease_ttl.total_seconds(), self._performances.hear)
            await stack.enter_async_context(beside(self._engine, self._opening, care))
            if self._reconcile:
                await stack.enter_async_context(self._engine.reconcilers.running())
            stack.push_async_callback(self._presence.leave)
            await stack.enter_async_context(in_background(self._presence.run()))
            self._claiming.start()
            self._around = stack.pop_all()
        _log.info("works as %s", self.id.instance)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def run(self) -> None:
        """Returns when the worker has been stopped."""
        await self._stopped.wait()

    async def stop(self, grace: limits.Duration | None = None) -> None:
        """Drains the worker; returns when it has ended. Called again, the shortest grace counts."""
        seconds = (self._grace if grace is None else limits.duration(grace, "grace")).total_seconds()
        timer = asyncio.get_running_loop().call_later(seconds, self._grace_over.set)
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(), name="flowfabric-stop")
        try:
            await asyncio.shield(self._stopping)
        finally:
            timer.cancel()

    async def _stop(self) -> None:
        try:
            async with self._around:
                await drain(self._engine, self._claiming, self._performances, self._grace_over)
        finally:
            self._stopped.set()
