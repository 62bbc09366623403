"""`engine.workers`: the register of workers."""

from __future__ import annotations

import socket
from collections.abc import Collection, Sequence
from datetime import datetime

from flowfabric.core import validation
from flowfabric.core.executions import requests
from flowfabric.core.executions.outcomes import AlreadySatisfied
from flowfabric.core.executions.records import WorkerId
from flowfabric.core.workers import MarkedDead, Registered, Registration, WorkerPage
from flowfabric.engine.context import Context, audit_info
from flowfabric.engine.cursors import cut_page, open_name_cursor, query_digest
from flowfabric.engine.operator import OPERATOR
from flowfabric.ops.workers import (
    Heartbeat,
    MarkDead,
    WorkerListing,
    heartbeat_worker,
    list_workers,
    mark_worker_dead,
    register_worker,
)

MAX_SLOTS = 1_000_000


class Workers:
    """Registers and lists live workers.

    `explain` and operators use this register; a worker can claim without a registration.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    async def register(
        self,
        worker: WorkerId | str,
        lanes: Sequence[str],
        *,
        capabilities: Collection[str] = (),
        version: str = "unknown",
        host: str | None = None,
        slots: int = 1,
        ttl: validation.Duration = 60,
        kinds: Sequence[str] | None = None,
    ) -> Registered:
        """Register a worker with its capabilities and its kinds, for the duration `ttl`.

        None for `kinds` means all kinds. A repeated call replaces the registration.
        """
        registration = Registration(
            id=requests.parse_worker(worker),
            lanes=validation.names(lanes, "lanes"),
            capabilities=validation.capabilities(capabilities, "capabilities"),
            version=validation.name(version, "version"),
            host=validation.name(socket.gethostname() or "unknown" if host is None else host, "host"),
            slots=validation.integer(slots, "slots", 0, MAX_SLOTS),
            kinds=None if kinds is None else validation.names(kinds, "kinds"),
            ttl=validation.duration(ttl, "ttl", validation.MIN_LEASE_TTL, validation.MAX_LEASE_TTL),
        )
        outcome = await self._context.call(register_worker, registration)
        self._context.due_at(outcome.expires_at)
        return outcome

    async def heartbeat(self, instance: str, *, busy: int = 0) -> datetime:
        """Extend the registration of a worker, store how many of its slots are busy, and return when it expires."""
        heartbeat = Heartbeat(validation.name(instance, "instance"), validation.integer(busy, "busy", 0, MAX_SLOTS))
        return await self._context.call(heartbeat_worker, heartbeat)

    async def list(self, *, lane: str | None = None, limit: int = 100, cursor: str | None = None) -> WorkerPage:
        """Return one page of the live workers of one lane or of all lanes, sorted by instance.

        Pass `next_cursor` of the page to get the next one.
        """
        lane = None if lane is None else validation.name(lane, "lane")
        size = validation.integer(limit, "limit", 1, validation.MAX_BATCH)
        query = query_digest(self._context.namespace, {"workers": True, "lane": lane})
        after = "" if cursor is None else open_name_cursor(cursor, query)
        workers = await self._context.call(list_workers, WorkerListing(lane, after, size + 1))
        return WorkerPage(*cut_page(workers, size, query, lambda worker: worker.id.instance))

    async def mark_dead(
        self, instance: str, reason: str = "", *, principal: str = OPERATOR
    ) -> MarkedDead | AlreadySatisfied:
        """Remove a worker from the register immediately.

        The worker's leases stay until they expire or are revoked one by one.
        """
        request = MarkDead(validation.name(instance, "instance"), audit_info(principal, reason))
        return await self._context.call(mark_worker_dead, request)
