"""A background duty: find due rows, then reconcile them in one batch, or one by one if the batch fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

from flowfabric.core.errors import Unavailable
from flowfabric.core.executions.decision import Decision
from flowfabric.core.executions.outcomes import RetryScheduled
from flowfabric.core.executions.states import State
from flowfabric.store.ports import Store
from flowfabric.store.transaction import Transaction

BATCH = 100
# Removal decides nothing for single rows, and it must be as fast as new rows are created, so its batch is larger.
REMOVAL_BATCH = 500
_MAX_BACKOFF_TICKS = 64
_MAX_BACKOFF_ROWS = 500
Row = TypeVar("Row", bound=Hashable)
FindRows = Callable[[Transaction, datetime, int], Coroutine[Any, Any, list[Row]]]
ReconcileRows = Callable[[Transaction, Sequence[Row]], Coroutine[Any, Any, int]]
WriteDecisions = Callable[[Transaction, Sequence[UUID]], Coroutine[Any, Any, Sequence[Decision[Any]]]]
LOG = logging.getLogger("flowfabric")
_log = logging.getLogger("flowfabric.reconcilers")


@dataclass(frozen=True, slots=True)
class Tick:
    """The result of one run of a duty. `has_more` means that due rows remain for the next run."""

    duty: str
    done: int
    failed: int
    has_more: bool

    def combine(self, other: Tick) -> Tick:
        """Return the sum of the results of two parts of a duty."""
        has_more = self.has_more or other.has_more
        return Tick(self.duty, self.done + other.done, self.failed + other.failed, has_more=has_more)


class Tickable(Protocol):
    """The interface of a duty that the reconciler loop needs."""

    @property
    def name(self) -> str: ...
    async def tick(self, store: Store) -> Tick:
        """Do a bounded part of the due work."""


class Duties:
    """A duty that consists of several parts."""

    def __init__(self, *parts: Tickable) -> None:
        self.name, self._parts = parts[0].name, parts

    async def tick(self, store: Store) -> Tick:
        """Run each part once."""
        ticks = [await part.tick(store) for part in self._parts]
        return reduce(Tick.combine, ticks)


class RowDuty(Generic[Row]):
    """A duty that processes rows. `find` reads due rows without locks; `reconcile` locks them and decides again."""

    def __init__(self, name: str, find: FindRows[Row], reconcile: ReconcileRows[Row], batch: int = BATCH) -> None:
        self.name = name
        self._find = find
        self._reconcile = reconcile
        self._batch = batch
        self._backoffs: Backoffs[Row] = Backoffs()

    async def tick(self, store: Store) -> Tick:
        """Reconcile one batch of due rows. If a row fails, log it, skip it for some ticks, and do the other rows."""
        due = await store.read(self._find_due)
        rows = self._backoffs.select_ready(due)
        done, failed = await self._reconcile_batch(store, rows) if rows else (0, 0)
        return Tick(self.name, done, failed, has_more=len(due) >= self._batch and done > 0)

    async def is_due(self, store: Store) -> bool:
        """Return True if there are due rows, also rows that are locked or that failed."""
        return bool(await store.read(self._find_due))

    async def _find_due(self, tx: Transaction) -> list[Row]:
        return await self._find(tx, await tx.now(), self._batch + self._backoffs.waiting)

    async def _reconcile_batch(self, store: Store, rows: Sequence[Row]) -> tuple[int, int]:
        try:
            return await store.run(lambda tx: self._reconcile(tx, rows)), 0
        except Exception as error:
            if _is_outage(error):
                raise
            # A single row may make the whole batch fail. If rows are handled one by one, only that row fails.
            _log.warning("Batch of duty %s failed, retrying its %d rows one by one", self.name, len(rows))
        counts = [await self._reconcile_one(store, row) for row in rows]
        return sum(count for count in counts if count is not None), counts.count(None)

    async def _reconcile_one(self, store: Store, row: Row) -> int | None:
        try:
            done = await store.run(lambda tx: self._reconcile(tx, [row]))
        except Exception as error:
            if _is_outage(error):
                raise
            self._backoffs.add(row)
            _log.exception("Duty %s failed for %s, backing off", self.name, row)
            return None
        self._backoffs.discard(row)
        return done


class Duty(RowDuty[UUID]):
    """A duty that processes executions or flows. The query of the same name reads the due ids."""

    def __init__(self, name: str, reconcile: ReconcileRows[UUID], batch: int = BATCH) -> None:
        super().__init__(name, self._find_ids, reconcile, batch)

    async def _find_ids(self, tx: Transaction, now: datetime, limit: int) -> list[UUID]:
        return await tx.due.list_due(self.name, now, limit)


class DecisionDuty(Duty):
    """A duty that decides about due executions, and logs the failures, which no worker sees, after their commit."""

    def __init__(self, name: str, write_decisions: WriteDecisions) -> None:
        super().__init__(name, self._reconcile_executions)
        self._write_decisions = write_decisions
        self._failures: dict[UUID, _Failure] = {}

    async def tick(self, store: Store) -> Tick:
        """Reconcile one batch of due executions, then log the failures."""
        self._failures.clear()
        tick = await super().tick(store)
        while self._failures:
            _log_failure(*self._failures.popitem())
        return tick

    async def _reconcile_executions(self, tx: Transaction, ids: Sequence[UUID]) -> int:
        decisions = await self._write_decisions(tx, ids)
        for decision in decisions:
            if (failure := _find_failure(decision)) is not None:
                self._failures[decision.before.id] = failure
        return len(decisions)


@dataclass(frozen=True, slots=True)
class _Failure:
    """A failed attempt: the fields and the text of its log record. `is_final` means that the execution has failed."""

    fields: dict[str, Any]
    text: str
    is_final: bool


def _find_failure(decision: Decision[Any]) -> _Failure | None:
    """Return the failure that a decision writes, or None if it writes another change."""
    before, after, outcome = decision.before, decision.after, decision.outcome
    if after is None or not (isinstance(outcome, RetryScheduled) or after.state is State.FAILED):
        return None
    fields = {
        "execution_id": str(before.id),
        "task": before.kind,
        "step": None,
        "attempt": before.attempt_index,
        "namespace": before.namespace,
    }
    if not isinstance(outcome, RetryScheduled):
        return _Failure(fields, f"failed: {after.failure_message}", is_final=True)
    end = f"try {outcome.retry} of {outcome.max_retries + 1}, next try at {outcome.at:%Y-%m-%d %H:%M:%S} UTC"
    return _Failure(fields, f"failed, {end}: {after.failure_message}", is_final=False)


def _log_failure(id_: UUID, failure: _Failure) -> None:
    level = logging.ERROR if failure.is_final else logging.WARNING
    LOG.log(level, "%s %s %s", failure.fields["task"], id_, failure.text, extra=failure.fields)


class Backoffs(Generic[Row]):
    """Failed rows, which are skipped for 1, 2, 4 … ticks. If there are too many of them, the oldest are forgotten."""

    def __init__(self) -> None:
        self._tick = 0
        self._until: dict[Row, tuple[int, int]] = {}

    @property
    def waiting(self) -> int:
        """The number of failed rows that are remembered."""
        return len(self._until)

    def select_ready(self, rows: Sequence[Row]) -> list[Row]:
        """Count one tick, and return those of `rows` that are not skipped in this tick."""
        self._tick += 1
        return [row for row in rows if self._until.get(row, (0, 0))[0] <= self._tick]

    def add(self, row: Row) -> None:
        """Skip a row for twice as many ticks as the last time."""
        _, last = self._until.pop(row, (0, 0))
        ticks = min(max(1, 2 * last), _MAX_BACKOFF_TICKS)
        self._until[row] = (self._tick + 1 + ticks, ticks)
        if len(self._until) > _MAX_BACKOFF_ROWS:
            self._until.pop(next(iter(self._until)))

    def discard(self, row: Row) -> None:
        """Forget a row that succeeded."""
        self._until.pop(row, None)


def _is_outage(error: Exception) -> bool:
    """Return True if the whole store is unavailable, so that other rows would fail too."""
    return isinstance(error, Unavailable) and error.code != "storage_error"
