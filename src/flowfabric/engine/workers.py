"""`engine.workers`: the register of workers."""

from __future__ import annotations

import builtins
import socket
from collections.abc import Collection, Sequence
from datetime import datetime

from flowfabric.core import limits, requests
from flowfabric.core.outcomes import AlreadySatisfied
from flowfabric.core.records import WorkerId
from flowfabric.core.workers import MarkedDead, Registered, Registration, Worker
from flowfabric.engine.context import Context, command
from flowfabric.engine.operator import OPERATOR
from flowfabric.ops.heartbeat_worker import heartbeat_worker
from flowfabric.ops.list_workers import list_workers
from flowfabric.ops.register_worker import register_worker
from flowfabric.ops.remove_worker import mark_worker_dead

MOST_SLOTS = 1_000_000


class Workers:
    """Who is there to do the work. Claiming does not need it; `explain` and operators do."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def register(
        self, worker: WorkerId | str, lanes: Sequence[str], *, capabilities: Collection[str] = (),
        version: str = "unknown", host: str | None = None, slots: int = 1, ttl: limits.Duration = 60,
        kinds: Sequence[str] | None = None,
    ) -> Registered:  # fmt: skip
        """Tells that the worker is there for so long, what it offers and which kinds it knows, all if none are named;
        again, it replaces what was said before."""
        registration = Registration(
            id=requests.worker(worker), lanes=limits.names(lanes, "lanes"),
            capabilities=limits.capabilities(capabilities, "capabilities"), version=limits.name(version, "version"),
            host=limits.name(socket.gethostname() or "unknown" if host is None else host, "host"),
            slots=limits.whole(slots, "slots", 0, MOST_SLOTS),
            kinds=None if kinds is None else limits.names(kinds, "kinds"),
            ttl=limits.duration(ttl, "ttl", limits.LEASE_TTL_LEAST, limits.LEASE_TTL_MOST),
        )  # fmt: skip
        answer = await self._context.store.run(
            lambda tx: register_worker(tx, self._context.namespace, registration)
        )  # fmt: skip
        self._context.due_at(answer.expires_at)
        return answer

    async def heartbeat(self, instance: str, *, busy: int = 0) -> datetime:
        """Tells that the worker is still there, and how many of its slots are in use; until when it counts as live."""
        name, number = limits.name(instance, "instance"), limits.whole(busy, "busy", 0, MOST_SLOTS)
        namespace = self._context.namespace
        return await self._context.store.run_single(lambda tx: heartbeat_worker(tx, namespace, name, number))

    async def list(self, *, lane: str | None = None) -> builtins.list[Worker]:
        """The workers that are there, by instance; those of one lane if asked."""
        name = None if lane is None else limits.name(lane, "lane")
        return await self._context.store.read(lambda tx: list_workers(tx, self._context.namespace, name))

    async def mark_dead(
        self, instance: str, reason: str = "", *, principal: str = OPERATOR
    ) -> MarkedDead | AlreadySatisfied:
        """Takes a worker out of the register at once. Its leases end by themselves, or are revoked one by one."""
        name, who = limits.name(instance, "instance"), command(principal, reason)
        return await self._context.store.run(lambda tx: mark_worker_dead(tx, self._context.namespace, name, who))
