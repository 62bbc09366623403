"""Bells: what somebody waits for, rung by news of this process and of others.

A bell is hung up before its owner looks, so what happens between the look and the wait is not missed.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from flowfabric.core.views import Glance
from flowfabric.store.news import News

Want = tuple[Any, ...]
_BETWEEN_RINGS_S = 0.1
_WHILE_LOCKED_S = 0.05


class Bell:
    """Rings when something happened that its owner wants to look at. Enter it to hang it up."""

    def __init__(self, bells: Bells, wants: Collection[Want], capabilities: Collection[str] = ()) -> None:
        self._bells = bells
        self.wants = tuple(wants)
        self.capabilities = tuple(capabilities)
        self.waited_for = False
        self.told: Glance | None = None
        self._has_rung = False
        self._waiter: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        self._bells.hang(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bells.take_down(self)

    def ring(self, told: Glance | None = None) -> None:
        """Wakes the owner, now or at its next wait, and tells how what it waits for has ended, if that is known."""
        self.told = told or self.told
        self._has_rung = True
        if self._waiter is not None:
            _wake(self._waiter)

    def clear(self) -> None:
        """Forgets what rang before; call it before looking, so that the look covers it."""
        self._has_rung = False

    async def wait(self, seconds: float) -> bool:
        """True as soon as it rings or has rung since the last time; False when the time has passed."""
        self.waited_for = True
        try:
            if not self._has_rung:
                await self._ringing(seconds)
        finally:
            self.waited_for = False
        has_rung, self._has_rung = self._has_rung, False
        return has_rung

    async def _ringing(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(seconds, _wake, self._waiter)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None


class Bells:
    """All bells of one process. It belongs to one event loop."""

    def __init__(self) -> None:
        self._hung: dict[Want, set[Bell]] = defaultdict(set)
        self._all: set[Bell] = set()
        self._ends_ring: asyncio.TimerHandle | None = None
        self._work_ring: asyncio.TimerHandle | None = None

    def hang(self, bell: Bell) -> None:
        """From now on news ring this bell."""
        self._all.add(bell)
        for want in bell.wants:
            self._hung[want].add(bell)

    def take_down(self, bell: Bell) -> None:
        """Nothing rings this bell any more."""
        self._all.discard(bell)
        for want in bell.wants:
            hung = self._hung.get(want)
            if hung is not None:
                hung.discard(bell)
                if not hung:
                    del self._hung[want]

    def ring(self, news: News) -> None:
        """Rings whatever the news are about."""
        if news.anything:
            self._ring(self._all)
            return
        if not self._all:
            return
        if news.many_ended:
            self._ring_soon_for_ends()
        for wants in (map(lane_of, news.lanes), map(events_of, news.namespaces)):
            for want in wants:
                self._ring(self._hung.get(want, ()))
        for id_ in news.ended:
            self._ring(self._hung.get(end_of(id_), ()), news.completed.get(id_))

    def ring_for_work(self) -> None:
        """Rings everybody who waits for work."""
        self._ring_kind("lane")

    def ring_soon_for_work(self) -> None:
        """Rings them in a moment, once for all who ask for it until then."""
        if self._work_ring is None:
            self._work_ring = asyncio.get_running_loop().call_later(_WHILE_LOCKED_S, self._ring_for_work)

    def _ring_for_work(self) -> None:
        self._work_ring = None
        self.ring_for_work()

    def _ring_soon_for_ends(self) -> None:
        """Everybody who waits for an end looks, but not more often than that: most of them look in vain."""
        if self._ends_ring is None:
            loop = asyncio.get_running_loop()
            self._ends_ring = loop.call_later(_BETWEEN_RINGS_S, self._ring_for_ends)

    def _ring_for_ends(self) -> None:
        self._ends_ring = None
        self._ring_kind("end")

    def _ring_kind(self, kind: str) -> None:
        self._ring(bell for want, hung in self._hung.items() if want[0] == kind for bell in hung)

    def waited_for(self) -> tuple[set[tuple[str, str]], set[str]]:
        """The lanes on which somebody waits for work at this moment, and what they offer."""
        waiting = [bell for bell in self._all if bell.waited_for]
        lanes = {(want[1], want[2]) for bell in waiting for want in bell.wants if want[0] == "lane"}
        return lanes, {token for bell in waiting for token in bell.capabilities}

    def __len__(self) -> int:
        return len(self._all)

    def _ring(self, bells: Iterable[Bell], told: Glance | None = None) -> None:
        for bell in list(bells):
            bell.ring(told)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def lane_of(lane: tuple[str, str]) -> Want:
    """What somebody wants who waits for work on a lane of a namespace."""
    return ("lane", *lane)


def events_of(namespace: str) -> Want:
    """What somebody wants who waits for events."""
    return ("events", namespace)


def end_of(id_: UUID) -> Want:
    """What somebody wants who waits for an execution to end."""
    return ("end", id_)
