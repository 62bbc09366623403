"""Rows that failed, kept aside for a growing number of ticks."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

_MOST_TICKS = 64
_MOST_ROWS = 500


class Backoffs:
    """Skips a failed row for 1, 2, 4 … ticks; forgets the oldest rows rather than growing without end."""

    def __init__(self) -> None:
        self._tick = 0
        self._until: dict[UUID, tuple[int, int]] = {}

    @property
    def waiting(self) -> int:
        """How many rows are set aside."""
        return len(self._until)

    def without_waiting(self, ids: Sequence[UUID]) -> list[UUID]:
        """The ids whose turn it is; counts as one tick."""
        self._tick += 1
        return [id_ for id_ in ids if self._until.get(id_, (0, 0))[0] <= self._tick]

    def add(self, id_: UUID) -> None:
        """Sets a row aside, twice as long as the last time."""
        _, last = self._until.pop(id_, (0, 0))
        ticks = min(max(1, 2 * last), _MOST_TICKS)
        self._until[id_] = (self._tick + 1 + ticks, ticks)
        if len(self._until) > _MOST_ROWS:
            self._until.pop(next(iter(self._until)))

    def forget(self, id_: UUID) -> None:
        """The row is well again."""
        self._until.pop(id_, None)
