"""What a duty is, and how the due executions of one are settled: together, and one by one if something is wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
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
_log = logging.getLogger("flowfabric.reconcilers")


@dataclass(frozen=True, slots=True)
class Tick:
    """What one run of a duty did; `more` says that it left due work for the next run."""

    duty: str
    done: int
    failed: int
    more: bool


class Duty:
    """Finds executions by a due time and decides on each of them again under its lock."""

    def __init__(self, name: str, decide: Decide) -> None:
        self.name = name
        self._decide = decide
        self._backoffs = Backoffs()

    async def tick(self, store: Store) -> Tick:
        """Settles up to one batch of what is due. A row that fails is logged and backs off; the others go on."""
        due = await store.read(self._due)
        ids = self._backoffs.without_waiting(due)
        done, failed = await self._settle(store, ids)
        return Tick(self.name, done, failed, more=len(due) >= BATCH and done > 0)

    async def _due(self, tx: Transaction) -> list[UUID]:
        return await tx.due.ids(self.name, await tx.now(), BATCH + self._backoffs.waiting)

    async def _settle(self, store: Store, ids: Sequence[UUID]) -> tuple[int, int]:
        if not ids:
            return 0, 0
        try:
            return await store.run(partial(settle, ids=ids, decide=self._decide)), 0
        except Exception as error:
            if _is_outage(error):
                raise
            # One of them is poisoned; taken one by one, only that one fails.
            _log.warning("%s: a batch failed, taking its %d executions one by one", self.name, len(ids))
        done = failed = 0
        for id_ in ids:
            try:
                done += await store.run(partial(settle, ids=[id_], decide=self._decide))
                self._backoffs.forget(id_)
            except Exception as error:
                if _is_outage(error):
                    raise
                failed += 1
                self._backoffs.add(id_)
                _log.exception("%s: execution %s failed and backs off", self.name, id_)
        return done, failed


def _is_outage(error: Exception) -> bool:
    """True when the store as a whole did not answer, which no other row would change."""
    return isinstance(error, Unavailable) and error.code != "storage_error"
