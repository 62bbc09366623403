"""Which due times are worth telling other processes.

Everybody looks again at the latest after `horizon_s`, so later due times need no telling. And everybody who was told of
one looks again when it comes, and finds those behind it: until then only an earlier one is news.
"""

from __future__ import annotations


class DueTimes:
    """Remembers the due time that others were told of last."""

    def __init__(self, horizon_s: float) -> None:
        self._horizon_s = horizon_s
        self._told: float | None = None

    def is_news(self, in_s: float, now_s: float) -> bool:
        """True if something that is due `in_s` from now must be told, by a clock that only goes on."""
        if in_s > self._horizon_s:
            return False
        due = now_s + max(0.0, in_s)
        if self._told is not None and now_s < self._told <= due:
            return False
        self._told = due
        return True
