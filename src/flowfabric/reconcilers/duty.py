"""What a duty is, and how the due executions of one are settled: together, and one by one if something is wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from flowfabric.core.decisions import Decision
from flowfabric.core.errors import Unavailable
from flowfabric.core.records import Execution
from flowfabric.ops.settle import settle
from flowfabric.reconcilers.backoff import Backoffs
from flowfabric.store.transaction import Store, Transaction

BATCH = 100
Decide = Callable[[Execution, datetime], Decision[Any] | None]
Settle = Callable[[Transaction, Sequence[UUID]], Coroutine[Any, Any, int]]
_log = logging.getLogger("flowfabric.reconcilers")


@dataclass(frozen=True, slots=True)
class Tick:
    """What one run of a duty did; `more` says that it left due work for the next run."""

    duty: str
    done: int
    failed: int
    more: bool


class Duty:
    """Finds executions by a due time, and settles them by a body that locks them and decides again."""

    def __init__(self, name: str, body: Settle) -> None:
        self.name = name
        self._body = body
        self._backoffs = Backoffs()

    async def tick(self, store: Store) -> Tick:
        """Settles up to one batch of what is due. A row that fails is logged and backs off; the others go on."""
        due = await store.read(self._due)
        ids = self._backoffs.without_waiting(due)
        done, failed = await self._settle(store, ids) if ids else (0, 0)
        return Tick(self.name, done, failed, more=len(due) >= BATCH and done > 0)

    async def _due(self, tx: Transaction) -> list[UUID]:
        return await tx.due.ids(self.name, await tx.now(), BATCH + self._backoffs.waiting)

    async def _settle(self, store: Store, ids: Sequence[UUID]) -> tuple[int, int]:
        try:
            return await store.run(lambda tx: self._body(tx, ids)), 0
        except Exception as error:
            if _is_outage(error):
                raise
            # One of them is poisoned; taken one by one, only that one fails.
            _log.warning("%s: a batch failed, taking its %d executions one by one", self.name, len(ids))
        answers = [await self._settle_one(store, id_) for id_ in ids]
        return sum(done for done in answers if done is not None), answers.count(None)

    async def _settle_one(self, store: Store, id_: UUID) -> int | None:
        try:
            done = await store.run(lambda tx: self._body(tx, [id_]))
        except Exception as error:
            if _is_outage(error):
                raise
            self._backoffs.add(id_)
            _log.exception("%s: execution %s failed and backs off", self.name, id_)
            return None
        self._backoffs.forget(id_)
        return done


def deciding(decide: Decide) -> Settle:
    """The body of a duty that moves executions by a pure decision."""

    async def body(tx: Transaction, ids: Sequence[UUID]) -> int:
        return await settle(tx, ids, decide)

    return body


def _is_outage(error: Exception) -> bool:
    """True when the store as a whole did not answer, which no other row would change."""
    return isinstance(error, Unavailable) and error.code != "storage_error"
