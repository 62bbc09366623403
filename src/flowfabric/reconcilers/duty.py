"""What a duty is, and how the rows that are due for one are settled: together, and one by one if something is wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

from flowfabric.core.decisions import Decision
from flowfabric.core.errors import Unavailable
from flowfabric.core.records import Execution
from flowfabric.ops.settle import settle
from flowfabric.reconcilers.backoff import Backoffs
from flowfabric.store.transaction import Store, Transaction

BATCH = 100
# What is only removed is not decided one by one, and must be removed as fast as it is made.
REMOVED = 500
Row = TypeVar("Row", bound=Hashable)
Decide = Callable[[Execution, datetime], Decision[Any] | None]
Find = Callable[[Transaction, datetime, int], Coroutine[Any, Any, list[Row]]]
SettleRows = Callable[[Transaction, Sequence[Row]], Coroutine[Any, Any, int]]
Settle = SettleRows[UUID]
_log = logging.getLogger("flowfabric.reconcilers")


@dataclass(frozen=True, slots=True)
class Tick:
    """What one run of a duty did; `more` says that it left due work for the next run."""

    duty: str
    done: int
    failed: int
    more: bool

    def and_also(self, other: Tick) -> Tick:
        """What both parts of a duty did."""
        return Tick(self.duty, self.done + other.done, self.failed + other.failed, more=self.more or other.more)


class RowDuty(Generic[Row]):
    """Finds rows by a due time, and settles them by a body that locks them and decides again."""

    def __init__(self, name: str, find: Find[Row], body: SettleRows[Row], batch: int = BATCH) -> None:
        self.name = name
        self._find = find
        self._body = body
        self._batch = batch
        self._backoffs: Backoffs[Row] = Backoffs()

    async def tick(self, store: Store) -> Tick:
        """Settles up to one batch of what is due. A row that fails is logged and backs off; the others go on."""
        due = await store.read(self._due)
        rows = self._backoffs.without_waiting(due)
        done, failed = await self._settle(store, rows) if rows else (0, 0)
        return Tick(self.name, done, failed, more=len(due) >= self._batch and done > 0)

    async def _due(self, tx: Transaction) -> list[Row]:
        return await self._find(tx, await tx.now(), self._batch + self._backoffs.waiting)

    async def _settle(self, store: Store, rows: Sequence[Row]) -> tuple[int, int]:
        try:
            return await store.run(lambda tx: self._body(tx, rows)), 0
        except Exception as error:
            if _is_outage(error):
                raise
            # One of them is poisoned; taken one by one, only that one fails.
            _log.warning("%s: a batch failed, taking its %d rows one by one", self.name, len(rows))
        answers = [await self._settle_one(store, row) for row in rows]
        return sum(done for done in answers if done is not None), answers.count(None)

    async def _settle_one(self, store: Store, row: Row) -> int | None:
        try:
            done = await store.run(lambda tx: self._body(tx, [row]))
        except Exception as error:
            if _is_outage(error):
                raise
            self._backoffs.add(row)
            _log.exception("%s: %s failed and backs off", self.name, row)
            return None
        self._backoffs.forget(row)
        return done


class Duty(RowDuty[UUID]):
    """The same for what hangs on executions or flows, which are found by their ids."""

    def __init__(self, name: str, body: Settle, batch: int = BATCH) -> None:
        super().__init__(name, self._ids, body, batch)

    async def _ids(self, tx: Transaction, now: datetime, limit: int) -> list[UUID]:
        return await tx.due.ids(self.name, now, limit)


def deciding(decide: Decide) -> Settle:
    """The body of a duty that moves executions by a pure decision."""

    async def body(tx: Transaction, ids: Sequence[UUID]) -> int:
        return await settle(tx, ids, decide)

    return body


def _is_outage(error: Exception) -> bool:
    """True when the store as a whole did not answer, which no other row would change."""
    return isinstance(error, Unavailable) and error.code != "storage_error"
