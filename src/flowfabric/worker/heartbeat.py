"""The registration of a worker, which operators and `explain` read."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress

from flowfabric.core.errors import FlowFabricError, NotFound
from flowfabric.core.executions.records import WorkerId
from flowfabric.engine.engine import Engine
from flowfabric.worker.claimer import ClaimCriteria

_log = logging.getLogger("flowfabric.worker")
_TTL_S = 60.0
_BEAT_S = 20.0
_RETRY_S = 2.0
_BEGIN_WITHIN_S = 5.0
_LEAVE_WITHIN_S = 2.0
_MAX_HOST_CHARACTERS = 60


def new_worker_id(name: str | None) -> WorkerId:
    """Return a new worker id with a unique instance. The name defaults to the host name."""
    host = (socket.gethostname() or "unknown")[:_MAX_HOST_CHARACTERS]
    return WorkerId(name or host, f"{host}-{os.getpid()}-{os.urandom(4).hex()}")


class WorkerHeartbeat:
    """Registers a worker where it claims, sends heartbeats with its load, and removes it at the end."""

    def __init__(
        self, engine: Engine, criteria: ClaimCriteria, slots: int, busy: Callable[[], int], version: Callable[[], str]
    ) -> None:
        self._engines = [engine.for_namespace(name) for name in engine.claim_namespaces]
        self._criteria = criteria
        self._slots = slots
        self._version = version
        self._busy = busy
        self._registered_kinds: tuple[str, ...] | None = None
        self._has_begun = asyncio.Event()

    async def run(self) -> None:
        """Send heartbeats at a fixed interval until cancelled, even if some of them fail."""
        while True:
            pause_s = _BEAT_S
            try:
                await self._beat()
            except FlowFabricError as error:
                _log.debug("Heartbeat failed: %s", error)
                pause_s = _RETRY_S
            except Exception:
                _log.exception("Heartbeat failed unexpectedly")
            self._has_begun.set()
            await asyncio.sleep(pause_s)

    async def wait_begun(self) -> None:
        """Wait a moment for the registration. Until then, other workers do not know the version of this code."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_BEGIN_WITHIN_S):
                await self._has_begun.wait()

    async def leave(self) -> None:
        """Remove the registration. If the store is slow or unavailable, leave the registration to expire."""
        id_ = self._criteria.worker
        with suppress(FlowFabricError, TimeoutError):
            async with asyncio.timeout(_LEAVE_WITHIN_S):
                for engine in self._engines:
                    await engine.workers.mark_dead(id_.instance, "stopped", principal=id_.name)

    async def _beat(self) -> None:
        kinds = tuple(self._criteria.kinds())
        if not kinds:
            return  # No tasks are registered yet, so do not register the worker.
        for engine in self._engines:
            await self._beat_in(engine, kinds)
        self._registered_kinds = kinds

    async def _beat_in(self, engine: Engine, kinds: tuple[str, ...]) -> None:
        if self._registered_kinds == kinds:
            with suppress(NotFound):
                await engine.workers.heartbeat(self._criteria.worker.instance, busy=self._busy())
                return
        await engine.workers.register(
            self._criteria.worker,
            self._criteria.lanes,
            capabilities=self._criteria.capabilities,
            version=self._version(),
            slots=self._slots,
            ttl=_TTL_S,
            kinds=kinds,
        )
