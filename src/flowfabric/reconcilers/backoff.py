"""Rows that failed, kept aside for a growing number of ticks."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

Row = TypeVar("Row", bound=Hashable)
_MOST_TICKS = 64
_MOST_ROWS = 500


class Backoffs(Generic[Row]):
    """Skips a failed row for 1, 2, 4 … ticks; forgets the oldest rows rather than growing without end."""

    def __init__(self) -> None:
        self._tick = 0
        self._until: dict[Row, tuple[int, int]] = {}

    @property
    def waiting(self) -> int:
        """How many rows are set aside."""
        return len(self._until)

    def without_waiting(self, rows: Sequence[Row]) -> list[Row]:
        """Those whose turn it is; counts as one tick."""
        self._tick += 1
        return [row for row in rows if self._until.get(row, (0, 0))[0] <= self._tick]

    def add(self, row: Row) -> None:
        """Sets a row aside, twice as long as the last time."""
        _, last = self._until.pop(row, (0, 0))
        ticks = min(max(1, 2 * last), _MOST_TICKS)
        self._until[row] = (self._tick + 1 + ticks, ticks)
        if len(self._until) > _MOST_ROWS:
            self._until.pop(next(iter(self._until)))

    def forget(self, row: Row) -> None:
        """The row is well again."""
        self._until.pop(row, None)
