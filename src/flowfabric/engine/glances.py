"""Looking at many executions at once: callers that ask while a read is under way share the next one."""

from __future__ import annotations

import asyncio
from uuid import UUID

from flowfabric.core.fences import execution_not_found
from flowfabric.core.limits import BATCH
from flowfabric.core.views import Glance
from flowfabric.store.transaction import Store


class Glances:
    """Reads where executions are, as many as are asked for by one statement. Nobody waits for a timer: the first to ask
    is read at once, and whoever comes meanwhile is in the next read."""

    def __init__(self, store: Store, namespace: str) -> None:
        self._store, self._namespace = store, namespace
        self._wanted: dict[UUID, asyncio.Future[Glance | None]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def of(self, id_: UUID) -> Glance:
        """Where the execution is; `execution_not_found` if there is none."""
        if id_ not in self._wanted:
            self._wanted[id_] = asyncio.get_running_loop().create_future()
        answer = self._wanted[id_]
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        found = await asyncio.shield(answer)
        if found is None:
            raise execution_not_found(id_)
        return found

    async def _read(self) -> None:
        try:
            while self._wanted:
                await self._read_some()
        finally:
            self._reading = None

    async def _read_some(self) -> None:
        ids = list(self._wanted)[:BATCH]
        asked = {id_: self._wanted.pop(id_) for id_ in ids}
        try:
            found = await self._store.read_single(lambda tx: tx.looks.glances(self._namespace, ids))
        except BaseException as error:
            for answer in asked.values():
                _answer(answer, error)
            if not isinstance(error, Exception):
                raise
            return
        for id_, answer in asked.items():
            _answer(answer, found.get(id_))


def _answer(answer: asyncio.Future[Glance | None], found: Glance | BaseException | None) -> None:
    if answer.done():
        return
    if isinstance(found, BaseException):
        answer.set_exception(found)
        answer.exception()  # Whoever asked may have gone meanwhile.
    else:
        answer.set_result(found)
