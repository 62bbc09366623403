"""A worker's place in the register, for people and for `explain`."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from flowfabric.core.errors import FlowFabricError, NotFound
from flowfabric.core.records import WorkerId
from flowfabric.engine.engine import Engine
from flowfabric.worker.claiming import Offer

_log = logging.getLogger("flowfabric.worker")
_TTL_S = 60.0
_BEAT_S = 20.0
_LEAVE_WITHIN_S = 2.0
_LONGEST_NAME = 60


def new_worker_id(name: str | None) -> WorkerId:
    """This process under that name, or its host's; the instance tells host, process and which worker of it."""
    host = (socket.gethostname() or "unknown")[:_LONGEST_NAME]
    return WorkerId(name or host, f"{host}-{os.getpid()}-{os.urandom(4).hex()}")


class Presence:
    """Registers a worker, tells now and then that it lives and how busy it is, and takes it out at the end."""

    def __init__(self, engine: Engine, offer: Offer, slots: int, busy: Callable[[], int]) -> None:
        self._engine = engine
        self._offer = offer
        self._slots = slots
        self._busy = busy
        self._known: tuple[str, ...] | None = None

    async def run(self) -> None:
        """Goes on until cancelled. A store that does not answer is asked again at the next beat."""
        while True:
            try:
                await self._beat()
            except FlowFabricError as error:
                _log.debug("the register of workers could not be told: %s", error)
            except Exception:
                _log.exception("the register of workers could not be told")
            await asyncio.sleep(_BEAT_S)

    async def leave(self) -> None:
        """Takes the worker out, if the store answers soon; else its time passes."""
        id_ = self._offer.worker
        with suppress(FlowFabricError, TimeoutError):
            async with asyncio.timeout(_LEAVE_WITHIN_S):
                await self._engine.workers.mark_dead(id_.instance, "stopped", principal=id_.name)

    async def _beat(self) -> None:
        kinds = tuple(self._offer.kinds())
        if not kinds:
            return  # Whoever knows nothing yet is not there for anybody.
        if self._known == kinds:
            with suppress(NotFound):
                await self._engine.workers.heartbeat(self._offer.worker.instance, busy=self._busy())
                return
        await self._engine.workers.register(
            self._offer.worker, self._offer.lanes, capabilities=self._offer.capabilities, version=_version(),
            slots=self._slots, ttl=_TTL_S, kinds=kinds,
        )  # fmt: skip
        self._known = kinds


def _version() -> str:
    try:
        return version("flowfabric")
    except PackageNotFoundError:
        return "unknown"
