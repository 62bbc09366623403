"""The engine: one store, one namespace, and the operations grouped by what they act on."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Self

from flowfabric.core.ids import IdMinter
from flowfabric.engine.context import Context
from flowfabric.engine.events import Events
from flowfabric.engine.executions import Executions
from flowfabric.engine.flows import Flows
from flowfabric.engine.keys import Keys
from flowfabric.engine.lanes import Lanes
from flowfabric.engine.leases import Leases
from flowfabric.engine.operator import Operator
from flowfabric.engine.signals import Signals
from flowfabric.engine.waitpoints import Waitpoints
from flowfabric.engine.workers import Workers
from flowfabric.reconcilers.loop import Reconcilers


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
