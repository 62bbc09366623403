"""Which executions are removed together: those whose time is over, and no more than can be removed quickly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from flowfabric.core.records import Execution

ROWS = 2000


@dataclass(frozen=True, slots=True)
class Remains:
    """An execution that may be removed at that time, if at all, and about how many rows it would take along."""

    id: UUID
    purge_at: datetime | None
    rows: int


def remains_of(execution: Execution) -> Remains:
    """The same of an execution that was read whole, with its attempts, steps, signals, suspensions and waitpoints."""
    ended = 2 + execution.attempt_index
    rows = ended + execution.step_seq + execution.signal_seq + 2 * execution.suspension_count
    return Remains(execution.id, execution.purge_at, rows)


def due_by(found: Sequence[Remains], now: datetime) -> list[Remains]:
    """Those whose time is over."""
    return [item for item in found if item.purge_at is not None and item.purge_at <= now]


def fitting(found: Sequence[Remains], most: int) -> list[Remains]:
    """The first of them, as many as have so many rows together; one at least, however many it has."""
    rows = 0
    for place, item in enumerate(found):
        rows += item.rows
        if place and rows > most:
            return list(found[:place])
    return list(found)
