"""Which events may go: those of executions that are gone, once their time has come and every named subscriber has
passed them. Events of a living execution are never trimmed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from flowfabric.core.positions import Position

POSTPONED = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class EventKeeping:
    """How long events stay after their execution was removed, or after they happened if they belong to none; and after
    which silence of a named subscriber they are not kept for it any longer."""

    retention: timedelta
    subscriber_expiry: timedelta


@dataclass(frozen=True, slots=True)
class Trim:
    """Executions whose events go and those that are looked at again later, and the last position that goes."""

    remove: tuple[UUID, ...]
    postpone: tuple[UUID, ...]
    last: Position | None


def decide_trim(due: Sequence[tuple[UUID, Position | None]], slowest: Position | None) -> Trim:
    """What becomes of the events of executions that are due, given how far the slowest subscriber is."""
    passed = [(id_, last) for id_, last in due if last is None or slowest is None or last <= slowest]
    gone = {id_ for id_, _ in passed}
    positions = [last for _, last in passed if last is not None]
    return Trim(
        remove=tuple(id_ for id_, _ in passed),
        postpone=tuple(id_ for id_, _ in due if id_ not in gone),
        last=max(positions, default=None),
    )


def passed_by(positions: Sequence[Position], slowest: Position | None) -> list[Position]:
    """Those that the slowest subscriber has passed."""
    return [position for position in positions if slowest is None or position <= slowest]
