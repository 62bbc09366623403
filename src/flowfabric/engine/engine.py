"""The `Engine` class, which acts on one store in one namespace and has the groups of calls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Self
from uuid import UUID, uuid4

from flowfabric.core import validation
from flowfabric.core.executions.outcomes import Lease
from flowfabric.core.executions.views import Backlog, HeldWork
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
from flowfabric.ops.executions.purge import erase_next
from flowfabric.ops.executions.read import backlog, held_work
from flowfabric.ops.mark_as_test import mark_as_test
from flowfabric.reconcilers.loop import Reconcilers
from flowfabric.store.ports import StoreInfo


class Engine:
    """A durable execution engine on one store, in one namespace. `connect` returns it."""

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
        """The background duties, which serve all namespaces of the store."""
        return self._context.reconcilers

    def for_namespace(self, namespace: str) -> Engine:
        """Return an engine on the same store in another namespace. Closing either engine closes both."""
        return Engine(self._context.for_namespace(namespace))

    def for_lease(self, lease: Lease) -> Engine:
        """Return an engine in the namespace of the lease, which is this engine if the namespace is the same."""
        context = self._context.for_lease(lease)
        return self if context is self._context else Engine(context)

    @property
    def claim_namespaces(self) -> tuple[str, ...]:
        """The namespaces that claims cover."""
        claimed = self._context.claim_namespaces
        return (self.namespace,) if claimed is None else claimed.names

    def now(self) -> datetime:
        """Return the store's approximate time without a query.

        If `connect` was given a `clock`, return the time of that clock.
        """
        return self._context.wakeups.store_now()

    def mint_id(self) -> UUID:
        """Return a new id for a call that takes one. If the call is repeated with this id, it has one effect."""
        return self._context.ids.mint()

    def with_ids(self, ids: IdMinter) -> Engine:
        """Return the same engine with a different source of ids, for tests that need the same ids in every run."""
        return Engine(replace(self._context, ids=ids))

    async def mark_as_test(self, *, adopt: bool = False) -> None:
        """Mark the store as one whose time a test may move, as the testing kit does.

        Raise `not_a_test_store` if the store has no such mark and has been used. With `adopt`, mark it nevertheless.
        """
        await self._context.call(mark_as_test, validation.boolean(adopt, "adopt"))

    async def ping(self) -> None:
        """Raise `Unavailable` unless the store responds."""
        await self._context.store.ping()

    async def store_info(self) -> StoreInfo:
        """Return the versions of the database and the schema, the settings that affect durability, and the time."""
        return await self._context.store.store_info()

    async def find_damage(self) -> list[str]:
        """Check all stored data, and return one sentence per problem. An empty list means that none was found.

        On SQLite this checks the pages and indexes of the file too. It reads everything, so it may take minutes.
        """
        return await self._context.store.find_damage()

    async def backup(self, file: str) -> None:
        """Write a checked copy of a SQLite store to a new file, while other calls and processes use the store.

        `flowfabric restore` puts such a copy in place. For a PostgreSQL store, use `pg_dump`.
        """
        await self._context.store.backup(validation.text(file, "file"))

    async def backlog(self) -> list[Backlog]:
        """Return how much work waits for a worker, by lane, kind and required capabilities."""
        return await self._context.call(backlog, None)

    async def held_work(self) -> list[HeldWork]:
        """Return the held executions by kind and hold reason, at most 20 groups. Counts are exact up to 1,000."""
        return await self._context.call(held_work, None)

    @asynccontextmanager
    async def temporary_namespace(self) -> AsyncIterator[Engine]:
        """Yield an engine in a new namespace with a random name.

        At the end, remove the namespace with all its executions.
        """
        context = self._context.for_namespace(f"scratch-{uuid4()}")
        try:
            yield Engine(context)
        finally:
            while await context.call(erase_next, validation.MAX_BATCH):
                pass

    async def close(self, timeout: validation.Duration | None = None) -> None:  # noqa: ASYNC109 - as in asyncpg
        """Close all connections, and wait at most `timeout` for a store that does not respond.

        Writes of calls that have returned are durable. A call that is still running may or may not have been committed.
        """
        limit_s = None if timeout is None else validation.duration(timeout, "timeout").total_seconds()
        await self._context.wakeups.close(limit_s)
        await self._context.store.close(limit_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
