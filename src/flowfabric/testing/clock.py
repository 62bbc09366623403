"""A manual clock for tests."""

from __future__ import annotations

from datetime import UTC, datetime

from flowfabric.core import validation

_START = datetime(2030, 1, 1, tzinfo=UTC)


class VirtualClock:
    """A clock that moves only when a test advances it. Pass it to `connect(…, clock=clock)`."""

    def __init__(self, start: datetime = _START) -> None:
        self._now = validation.timestamp(start, "start")

    def now(self) -> datetime:
        """Return the current time of this clock."""
        return self._now

    def advance(self, duration: validation.Duration) -> datetime:
        """Move the clock forward by `duration` and return the new time."""
        self._now = validation.timestamp(self._now + validation.duration(duration, "duration"), "the clock's time")
        return self._now

    def advance_to(self, moment: datetime) -> datetime:
        """Move the clock forward to `moment` and return the new time. The clock never moves back."""
        self._now = max(self._now, validation.timestamp(moment, "moment"))
        return self._now
