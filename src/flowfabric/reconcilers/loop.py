"""The loop that runs the duties: one statement asks for the next due times, then it sleeps until the earliest.

A duty is run when its due time has come by the store's clock, never before. Whoever commits an earlier one wakes the
loop, in this process or by a wake-up from another; a look now and then bounds how late it is when wake-ups are lost.
The same statement asks whether work waits for the idle workers of this process, so that these need not claim in vain.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Protocol

from flowfabric.core import limits
from flowfabric.core.errors import FlowFabricError
from flowfabric.core.trimming import EventKeeping
from flowfabric.reconcilers.attempt_timeout import attempt_timeout
from flowfabric.reconcilers.cancel_grace import cancel_grace
from flowfabric.reconcilers.deadline import deadline
from flowfabric.reconcilers.delayed_work import delayed_work
from flowfabric.reconcilers.duty import Tick
from flowfabric.reconcilers.event_trimming import EventTrimming
from flowfabric.reconcilers.flow_cancellation import flow_cancellation
from flowfabric.reconcilers.flow_retention import flow_retention
from flowfabric.reconcilers.key_collection import key_collection
from flowfabric.reconcilers.lease_expiry import lease_expiry
from flowfabric.reconcilers.retention import Retention
from flowfabric.reconcilers.suspension_timeout import suspension_timeout
from flowfabric.reconcilers.timers import timers
from flowfabric.reconcilers.waitpoint_expiry import waitpoint_expiry
from flowfabric.reconcilers.worker_liveness import worker_liveness
from flowfabric.store.transaction import Look, Question, Store
from flowfabric.wakeups.wakeups import Wakeups

_log = logging.getLogger("flowfabric.reconcilers")
_MOST_BACKOFF_S = 5.0
_LEFT_OUT_S = 0.125
_MOST_LEFT_OUT_S = 1.0


class Tickable(Protocol):
    """A duty, as the loop sees it."""

    @property
    def name(self) -> str: ...
    async def tick(self, store: Store) -> Tick:
        """Does what is due, within bounds."""


class Reconcilers:
    """All duties over one store."""

    def __init__(self, store: Store, wakeups: Wakeups, keeping: EventKeeping, poll_s: float | None = None) -> None:
        self._store = store
        self._wakeups = wakeups
        self._keeping = keeping
        self._poll_s = poll_s
        self._duties: Sequence[Tickable] = (
            lease_expiry(),
            delayed_work(),
            attempt_timeout(random.random),
            deadline(),
            suspension_timeout(),
            timers(),
            waitpoint_expiry(),
            key_collection(),
            flow_cancellation(),
            cancel_grace(),
            Retention(keeping.retention),
            flow_retention(keeping.retention),
            EventTrimming(keeping),
            worker_liveness(),
        )
        self._wake = asyncio.Event()
        self._sleeps_until: datetime | None = None
        self._in_vain = 0
        wakeups.on_due(self.hint)

    async def tick(self) -> list[Tick]:
        """Runs every duty once, due or not."""
        return [await duty.tick(self._store) for duty in self._duties]

    async def tick_due(self) -> list[Tick]:
        """Runs once the duties whose time has come."""
        look = await self._look(limits.EARLIEST)
        return [await duty.tick(self._store) for duty in self._duties if duty.name in look.overdue]

    async def now(self) -> datetime:
        """The store's time, which is never before anything that it has seen."""
        return (await self._look(limits.EARLIEST)).now

    async def due(self) -> dict[str, datetime]:
        """When each duty has something to do; those that have nothing are left out."""
        look = await self._look(limits.EARLIEST)
        return {name: time for name, time in look.due.items() if time is not None}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs the duties in the background while the block lasts."""
        task = asyncio.create_task(self._run(), name="flowfabric-reconcilers")
        self._wakeups.patrols += 1
        try:
            # The bell wants nothing but to have the listener started.
            with self._wakeups.bell(()):
                yield
        finally:
            self._wakeups.patrols -= 1
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def hint(self, due: datetime | None = None) -> None:
        """Tells that something is due then, or at an unknown time; wakes the loop unless it wakes earlier anyhow."""
        if due is None or self._sleeps_until is None or due < self._sleeps_until:
            self._wake.set()

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                pause_s = await self._round()
                failures = 0
            except FlowFabricError as error:
                failures += 1
                pause_s = random.uniform(0, min(_MOST_BACKOFF_S, 0.05 * 2**failures))
                _log.warning("reconcilers: %s", error)
            except Exception:
                failures += 1
                pause_s = _MOST_BACKOFF_S
                _log.exception("reconcilers: a duty broke and is tried again")
            await self._sleep(pause_s)

    async def _round(self) -> float:
        """Runs the duties that are due; answers how long to sleep."""
        self._wake.clear()
        self._sleeps_until = None
        look = await self._look(limits.EARLIEST)
        ticks = [await self._tick(duty) for duty in self._duties if duty.name in look.overdue]
        if any(tick.more or tick.done for tick in ticks):
            return 0.0
        self._in_vain = self._in_vain + 1 if look.overdue else 0
        if look.overdue:
            # Rows that fail or that others have locked must not hide the ones to come.
            look = await self._look(look.now)
        return self._pause(look.now, look.due)

    async def _look(self, after: datetime) -> Look:
        lanes, capabilities = self._wakeups.bells.waited_for()
        question = Question(after=after, keeping=self._keeping, lanes=lanes, capabilities=capabilities)
        look = await self._store.read_single(lambda tx: tx.due.look(question))
        self._wakeups.learn_time(look.now)
        if look.work:
            self._wakeups.bells.ring_for_work()
        return look

    async def _tick(self, duty: Tickable) -> Tick:
        """One duty that cannot go on does not keep the others from going on."""
        try:
            return await duty.tick(self._store)
        except FlowFabricError as error:
            _log.warning("reconcilers: %s is tried again: %s", duty.name, error)
        except Exception:
            _log.exception("reconcilers: %s broke and is tried again", duty.name)
        return Tick(duty.name, done=0, failed=0, more=False)

    def _pause(self, now: datetime, due: Mapping[str, datetime | None]) -> float:
        later = [time - now for time in due.values() if time is not None and time > now]
        pause = min([timedelta(seconds=self._longest_s), self._wakeups.shortest_lease, *later])
        self._sleeps_until = now + pause
        return pause.total_seconds()

    @property
    def _longest_s(self) -> float:
        longest_s = self._wakeups.look_s if self._poll_s is None else self._poll_s
        if self._in_vain:
            # What others had locked is free again soon, and nobody tells; what fails is not worth a look more often.
            return min(longest_s, _MOST_LEFT_OUT_S, _LEFT_OUT_S * 2.0 ** min(self._in_vain, 10))
        return longest_s

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return
