"""Which events may go: those of executions that are gone, once their time has come and every named subscriber has
passed them. Events of a living execution are never trimmed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from flowfabric.core.positions import Position

POSTPONED = timedelta(minutes=10)
PAGE = 1000


@dataclass(frozen=True, slots=True)
class EventKeeping:
    """How long events stay after their execution was removed, or after they happened if they belong to none; and after
    which silence of a named subscriber they are not kept for it any longer."""

    retention: timedelta
    subscriber_expiry: timedelta


@dataclass(frozen=True, slots=True)
class Buried:
    """An execution that is gone: the position of its last event and the versions of the first and the last one that are
    left, if any is."""

    id: UUID
    last: Position | None
    versions: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Trim:
    """Up to which version the events of executions go, those that have none left then, those that are looked at again
    later, and the last position that goes."""

    up_to: tuple[tuple[UUID, int], ...]
    gone: tuple[UUID, ...]
    postpone: tuple[UUID, ...]
    last: Position | None


def decide_trim(due: Sequence[Buried], slowest: Position | None, most: int) -> Trim:
    """What becomes of the events of executions that are due, given how far the slowest subscriber is. Not more than
    `most` events go; the rest of them when it is looked again."""
    passed = [item for item in due if item.last is None or slowest is None or item.last <= slowest]
    up_to, gone = [], []
    for item in passed:
        first, last = item.versions
        number = 0 if item.last is None else min(most, last - first + 1)
        most -= number
        if number:
            up_to.append((item.id, first + number - 1))
        if item.last is None or first + number > last:
            gone.append(item.id)
    going = {id_ for id_, _ in up_to}
    positions = [item.last for item in passed if item.last is not None and item.id in going]
    waiting = tuple(item.id for item in due if item not in passed)
    return Trim(tuple(up_to), tuple(gone), waiting, max(positions, default=None))


def passed_by(positions: Sequence[Position], slowest: Position | None) -> list[Position]:
    """Those that the slowest subscriber has passed."""
    return [position for position in positions if slowest is None or position <= slowest]
