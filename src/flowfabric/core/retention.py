"""Decides which executions and events to delete in one small batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from flowfabric.core.events.cursor import Position
from flowfabric.core.executions.records import Execution

MAX_PURGE_ROWS = 2000


@dataclass(frozen=True, slots=True)
class PurgeBatch:
    """An execution, the time when it may be purged, and about how many rows the purge deletes."""

    id: UUID
    purge_at: datetime | None
    rows: int


def estimate_purge(execution: Execution, steps: int) -> PurgeBatch:
    """Estimate the rows of an execution with its attempts, steps, signals, suspensions and waitpoints."""
    rows = 2 + execution.attempt_index + steps + execution.signal_seq + 2 * execution.suspension_count
    return PurgeBatch(execution.id, execution.purge_at, rows)


def select_due(candidates: Sequence[PurgeBatch], now: datetime) -> list[PurgeBatch]:
    """Return the candidates whose retention has ended."""
    return [item for item in candidates if item.purge_at is not None and item.purge_at <= now]


def take_batch(candidates: Sequence[PurgeBatch], max_rows: int) -> list[PurgeBatch]:
    """Return the first candidates with at most `max_rows` rows in total; always return at least one candidate."""
    rows = 0
    for place, candidate in enumerate(candidates):
        rows += candidate.rows
        if place and rows > max_rows:
            return list(candidates[:place])
    return list(candidates)


# Events are trimmed after their execution was purged, when their retention has ended and every named subscriber has
# processed them.


POSTPONE_FOR = timedelta(minutes=10)
MAX_TRIMMED_EVENTS = 2000


@dataclass(frozen=True, slots=True)
class EventRetention:
    """How long events are kept after their execution was purged, or after they happened if they have no execution.

    If a named subscriber has been silent for `subscriber_expiry`, the store no longer keeps events for it.
    """

    retention: timedelta
    subscriber_expiry: timedelta


@dataclass(frozen=True, slots=True)
class DeletedExecution:
    """A purged execution, with the position of its last event and the first and last version of its stored events."""

    id: UUID
    last: Position | None
    versions: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Trim:
    """The decision which events to delete.

    The executions in `gone` lose all events, those in `part` lose their events up to a version, and those in `postpone`
    are checked again later. `last` is the highest position among the deleted events.
    """

    gone: tuple[UUID, ...]
    part: tuple[tuple[UUID, int], ...]
    postpone: tuple[UUID, ...]
    last: Position | None


def decide_trim(due: Sequence[DeletedExecution], slowest: Position | None, limit: int) -> Trim:
    """Decide which events of purged executions to delete: at most `limit`, and only up to position `slowest`."""
    processed = [item for item in due if item.last is None or slowest is None or item.last <= slowest]
    gone, part, positions = [], [], []
    for execution in processed:
        first, last = execution.versions
        count = 0 if execution.last is None else last - first + 1
        if count <= limit:
            gone.append(execution.id)
        elif limit:
            part.append((execution.id, first + limit - 1))
        if execution.last is not None and limit:
            positions.append(execution.last)
        limit = max(0, limit - count)
    processed_ids = {item.id for item in processed}
    waiting = tuple(item.id for item in due if item.id not in processed_ids)
    return Trim(tuple(gone), tuple(part), waiting, max(positions, default=None))


def select_processed(positions: Sequence[Position], slowest: Position | None) -> list[Position]:
    """Return the positions up to `slowest`, which every named subscriber has processed."""
    return [position for position in positions if slowest is None or position <= slowest]
