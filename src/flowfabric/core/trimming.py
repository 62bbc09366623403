"""Which events may go: those of executions that are gone, once their time has come and every named subscriber has
passed them. Events of a living execution are never trimmed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from flowfabric.core.positions import Position

POSTPONED = timedelta(minutes=10)
PAGE = 2000


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
    """The executions that lose all their events, those that lose a part and up to which version, those that are looked
    at again later, and the last position that goes."""

    gone: tuple[UUID, ...]
    part: tuple[tuple[UUID, int], ...]
    postpone: tuple[UUID, ...]
    last: Position | None


def decide_trim(due: Sequence[Buried], slowest: Position | None, most: int) -> Trim:
    """What becomes of the events of executions that are due, given how far the slowest subscriber is. Not more than
    `most` events go; the rest of them when it is looked again."""
    passed = [item for item in due if item.last is None or slowest is None or item.last <= slowest]
    gone, part, positions = [], [], []
    for item in passed:
        first, last = item.versions
        left = 0 if item.last is None else last - first + 1
        if left <= most:
            gone.append(item.id)
        elif most:
            part.append((item.id, first + most - 1))
        if item.last is not None and most:
            positions.append(item.last)
        most = max(0, most - left)
    known = {item.id for item in passed}
    waiting = tuple(item.id for item in due if item.id not in known)
    return Trim(tuple(gone), tuple(part), waiting, max(positions, default=None))


def passed_by(positions: Sequence[Position], slowest: Position | None) -> list[Position]:
    """Those that the slowest subscriber has passed."""
    return [position for position in positions if slowest is None or position <= slowest]
