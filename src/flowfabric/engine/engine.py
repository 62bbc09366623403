"""The engine: one store, one namespace, and the operations grouped by what they act on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Self

from flowfabric.core.ids import IdMinter
from flowfabric.core.views import Backlog
from flowfabric.engine.context import Context
from flowfabric.engine.events import Events
from flowfabric.engine.executions import Executions
from flowfabric.engine.flows import Flows
from flowfabric.engine.keys import Keys
from flowfabric.engine.lanes import Lanes
from flowfabric.engine.leases import Leases
from flowfabric.engine.operator import Operator
from flowfabric.engine.scratch import scratch_context
from flowfabric.engine.signals import Signals
from flowfabric.engine.waitpoints import Waitpoints
from flowfabric.engine.workers import Workers
from flowfabric.ops.backlog import backlog
from flowfabric.reconcilers.loop import Reconcilers
from flowfabric.store.facts import StoreFacts


class Engine:
    """A durable execution engine over one store, acting in one namespace. Made by `connect`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.executions = Executions(context)
        self.leases = Leases(context)
        self.waitpoints = Waitpoints(context)
        self.signals = Signals(context)
        self.flows = Flows(context)
        self.keys = Keys(context)
        self.operator = Operator(context)
        self.lanes = Lanes(context)
        self.workers = Workers(context)
        self.events = Events(context)

    @property
    def namespace(self) -> str:
        """The namespace that this engine acts in."""
        return self._context.namespace

    @property
    def reconcilers(self) -> Reconcilers:
        """The background duties; they serve all namespaces of the store."""
        return self._context.reconcilers

    def within(self, namespace: str) -> Engine:
        """The same store, seen from another namespace. Closing either closes both."""
        return Engine(self._context.within(namespace))

    def now(self) -> datetime:
        """About what the store's clock says, without asking it; exactly the clock that `connect` was given."""
        return self._context.wakeups.store_now()

    def minting(self, ids: IdMinter) -> Engine:
        """The same engine with ids from elsewhere, for tests that want the same ones in every run."""
        return Engine(replace(self._context, ids=ids))

    async def ping(self) -> None:
        """Returns if the store answers, raises `Unavailable` otherwise."""
        await self._context.store.ping()

    async def facts(self) -> StoreFacts:
        """What the store runs on, the version of its schema, the settings that durability hangs on, and its time."""
        return await self._context.store.facts()

    async def backlog(self) -> list[Backlog]:
        """What waits for a worker, by lane, kind and required capabilities."""
        return await self._context.store.read(lambda tx: backlog(tx, self._context.namespace))

    @asynccontextmanager
    async def scratch(self) -> AsyncIterator[Engine]:
        """The same store in a namespace with a drawn name, which is removed at the end with all of its executions."""
        async with scratch_context(self._context) as scratch:
            yield Engine(scratch)

    async def close(self) -> None:
        """Ends all connections. What was answered is stored; what was not may or may not be."""
        await self._context.wakeups.close()
        await self._context.store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
