"""A clock for tests."""

from __future__ import annotations

from datetime import UTC, datetime

from flowfabric.core import limits

_START = datetime(2030, 1, 1, tzinfo=UTC)


class VirtualClock:
    """A clock that stands still until it is advanced; give it to `connect(…, clock=clock)`."""

    def __init__(self, start: datetime = _START) -> None:
        self._now = limits.moment(start, "start")

    def now(self) -> datetime:
        """The present time."""
        return self._now

    def advance(self, duration: limits.Duration) -> datetime:
        """Moves the clock forward; answers the new time."""
        self._now = limits.moment(self._now + limits.duration(duration, "duration"), "the clock's time")
        return self._now

    def advance_to(self, moment: datetime) -> datetime:
        """Moves the clock forward to this time, if it lies ahead; answers the new time."""
        self._now = max(self._now, limits.moment(moment, "moment"))
        return self._now
