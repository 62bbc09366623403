"""Reading about many executions at once: callers that ask while a read is under way share the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar
from uuid import UUID

from flowfabric.core.fences import execution_not_found
from flowfabric.core.limits import BATCH
from flowfabric.store.transaction import Store, Transaction

Found = TypeVar("Found")
Read = Callable[[Transaction, str, Sequence[UUID]], Coroutine[Any, Any, Mapping[UUID, Found]]]


class SharedRead(Generic[Found]):
    """Reads the same about as many executions as are asked for, by one statement. Nobody waits for a timer: the first
    to ask is read at once, and whoever comes meanwhile is in the next read."""

    def __init__(self, store: Store, namespace: str, read: Read[Found]) -> None:
        self._store, self._namespace, self._read = store, namespace, read
        self._wanted: dict[UUID, list[asyncio.Future[Found | None]]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def of(self, id_: UUID) -> Found:
        """What is read about the execution; `execution_not_found` if there is none."""
        answer: asyncio.Future[Found | None] = asyncio.get_running_loop().create_future()
        self._wanted.setdefault(id_, []).append(answer)
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_all())
        found = await answer
        if found is None:
            raise execution_not_found(id_)
        return found

    async def _read_all(self) -> None:
        try:
            while self._wanted:
                await self._read_some()
        finally:
            self._reading = None

    async def _read_some(self) -> None:
        ids = list(self._wanted)[:BATCH]
        asked = {id_: self._wanted.pop(id_) for id_ in ids}
        try:
            found = await self._store.read_single(lambda tx: self._read(tx, self._namespace, ids))
        except BaseException as error:
            for answers in asked.values():
                _answer(answers, error)
            if not isinstance(error, Exception):
                raise
            return
        for id_, answers in asked.items():
            _answer(answers, found.get(id_))


def _answer(answers: Iterable[asyncio.Future[Found | None]], found: Found | BaseException | None) -> None:
    for answer in answers:
        if answer.done():
            continue  # Whoever asked has gone meanwhile.
        if isinstance(found, BaseException):
            answer.set_exception(found)
        else:
            answer.set_result(found)
