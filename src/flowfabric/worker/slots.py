"""How many executions a worker takes at a time.

A slot is taken while a performance runs. Beyond the free slots a worker claims ahead, so that slots do not wait for the
store: as many as will surely start within a moment, by what performances took lately. Slow work is hardly claimed
ahead, since another worker may be free for it now.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from flowfabric.core.limits import BATCH

_AHEAD_S = 0.1
_MOST_AHEAD = 256
_LINGER_S = 0.005
_GOOD_PART = 4
_WEIGHT = 0.1


class Slots:
    """Counts what runs and what waits to be started; `wait_for_room` says when to claim, and how many."""

    def __init__(self, number: int, lease_ttl_s: float) -> None:
        self.number = number
        self.busy = 0
        self.waiting = 0
        self._ahead_s = min(_AHEAD_S, lease_ttl_s / 10)
        self._mean_s: float | None = None
        self._freed = asyncio.Event()
        self._enough = asyncio.Event()

    @property
    def is_free(self) -> bool:
        """True if something can be started."""
        return self.busy < self.number

    @property
    def ahead(self) -> int:
        """How many may be held beyond those that run: what starts within a moment at the present pace, and not too
        many to give them all back."""
        if self._mean_s is None:
            return 0
        return int(min(max(self.number, _MOST_AHEAD), self.number * self._ahead_s / max(self._mean_s, 1e-6)))

    @property
    def room(self) -> int:
        """How many to claim now, none if zero."""
        return max(0, min(BATCH, self.number + self.ahead - self.busy - self.waiting))

    def begin(self) -> None:
        """A slot is taken."""
        self.busy += 1

    def end(self, seconds: float) -> None:
        """A slot is free again, after so long."""
        self.busy -= 1
        self._mean_s = seconds if self._mean_s is None else self._mean_s + _WEIGHT * (seconds - self._mean_s)

    def slow_down(self) -> None:
        """What was claimed ahead could not be started: the next slots must get free before that is done again."""
        self._mean_s = max(self._mean_s or 0.0, 2 * self.number * self._ahead_s)

    def note_room(self) -> None:
        """Wakes whoever waits for room, if there is enough."""
        room = self.room
        if room > 0:
            self._freed.set()
            if room >= self._good_part():
                self._enough.set()

    async def wait_for_room(self) -> int:
        """How many to claim. When slots get free quickly, waits a moment for a good part of them, to claim at once."""
        while True:
            while not self.room:
                self._freed.clear()
                await self._freed.wait()
            if self.room < self._good_part() and self._more_come_soon():
                await self._linger()
            # Slower work than was thought may have taken the room away meanwhile.
            if room := self.room:
                return room

    async def _linger(self) -> None:
        self._enough.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                await self._enough.wait()

    def _good_part(self) -> int:
        return max(1, (self.number + self.ahead) // _GOOD_PART)

    def _more_come_soon(self) -> bool:
        return self._mean_s is not None and self.busy * _LINGER_S >= self._mean_s
