"""Parked branches of a run: resolved as soon as they can go on, and suspended together when none is active."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from flowfabric.core.errors import InvalidRequest
from flowfabric.sdk.errors import CancelRequested, Unwind
from flowfabric.sdk.giving_up import give_up, look_around
from flowfabric.sdk.parking import Verdict, Wait, earliest, is_bad_end
from flowfabric.sdk.stalling import Stalling
from flowfabric.sdk.stays import leave_threads

if TYPE_CHECKING:
    from flowfabric.sdk.run import Run
    from flowfabric.sdk.units import Unit

_MOST_EMPTY_WAKES = 3
_LOOK_S = 0.5


class Resting:
    """The waits of a run. `active` counts the branches whose code runs; when it is none, the lease is given up."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.active = 0
        self.parked: dict[Wait, Unit] = {}
        self.is_giving_up = False
        self._empty_wakes = 0
        self._is_wanted = False
        self._settling: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stalling = Stalling(run)

    async def park(self, unit: Unit, wait: Wait) -> Verdict:
        """How the wait ended. If every branch rests, the run is suspended and this raises `Unwind`."""
        self._run.calls.check_alive(unit)
        self.parked[wait] = unit
        self.active -= 1
        self.settle_soon()
        try:
            return await wait.future
        finally:
            if self.parked.pop(wait, None) is not None:
                self.active += 1  # The code around it has given it up, and goes on.

    def resolve(self, wait: Wait, verdict: Verdict | BaseException) -> None:
        """Lets the branch go on that waits for this."""
        if wait.future.done():
            return
        self.parked.pop(wait, None)
        self.active += 1
        if isinstance(verdict, BaseException):
            wait.future.set_exception(verdict)
        else:
            wait.future.set_result(verdict)

    def drop(self) -> None:
        """Ends the waits of branches that nobody has any use for."""
        for wait, unit in list(self.parked.items()):
            if unit.is_dropped:
                self.resolve(wait, Unwind())

    def tell_cancel(self) -> None:
        """Tells the first branch that waits of a request to cancel, unless the lease is being given up: then the next
        run is told."""
        run = self._run
        is_due = run.cancel_due_at is not None and not run.calls.cancel_delivered
        if is_due and self.parked and not self.is_giving_up and not run.is_over:
            wait = next(iter(self.parked))
            run.calls.deliver_cancel(wait.call)
            self.resolve(wait, CancelRequested())

    def goes(self) -> None:
        """One more branch is active."""
        self.active += 1

    def rests(self) -> None:
        """One branch has ended, or waits for others."""
        self.active -= 1
        self.settle_soon()

    def look_again(self) -> None:
        """Something may have ended a parked wait."""
        for wait in self.parked:
            wait.is_unseen = True
        self.settle_soon()

    def settle_soon(self) -> None:
        """Looks at the parked waits as soon as the code that runs just now has come to rest."""
        if self.parked and not self._is_wanted:
            self._is_wanted = True
            self._run.loop.call_soon(self._settle)

    async def settled(self) -> None:
        """Returns when no look and no commit is under way."""
        if self._timer is not None:
            self._timer.cancel()
        if self._settling is not None and not self._settling.done():
            await asyncio.wait([self._settling])

    def _settle(self) -> None:
        self._is_wanted = False
        is_busy = self._settling is not None and not self._settling.done()
        if self.parked and not is_busy and not self._run.is_over:
            self._settling = self._run.loop.create_task(self._settle_waits())

    async def _settle_waits(self) -> None:
        try:
            seen = set(self.parked)
            if await self._judge(look=any(wait.is_unseen for wait in seen)) or not self.parked:
                return
            if self.active == 0 and not seen.issuperset(self.parked):
                return  # What was parked meanwhile may be over too, and is looked at next.
            if self.active == 0 and self._run.is_draining:
                self._run.unwind()
            elif self.active == 0:
                self._run.probe.resting(self._run)
                self._run.calls.check_over()
                await self._give_up()
            else:
                self._arm()
        except Unwind:
            pass
        except Exception as error:
            for wait in list(self.parked)[:1]:
                self.resolve(wait, error)
        finally:
            self._settling = None
            if self.parked and (self.active == 0 or any(wait.is_unseen for wait in self.parked)):
                self.settle_soon()

    def _arm(self) -> None:
        """While other branches are active, parked ones are looked after: when the next of them is due, and those that
        wait for somebody now and then. Plain ones leave their threads."""
        leave_threads(self.parked.values())
        due, pauses = earliest(list(self.parked)), [(self.settle_soon, self._stalling.check(next(iter(self.parked))))]
        if due is not None:
            pauses.append((self.look_again, (due - self._run.now()).total_seconds()))
        if any(wait.condition() is not None for wait in self.parked):
            pauses.append((self.look_again, _LOOK_S))
        if self._timer is not None:
            self._timer.cancel()
        look, pause_s = min(pauses, key=lambda item: item[1])
        self._timer = self._run.loop.call_later(max(0.0, pause_s), look)

    async def _judge(self, *, look: bool) -> bool:
        """Resolves the waits that have ended; False if there are none."""
        waits, now = list(self.parked), self._run.now()
        # Whatever came before a wait is over counts, so none is over without a look.
        look = look or any(wait.condition() is not None and wait.is_due(now) for wait in waits)
        seen = await look_around(self._run, waits) if look else None
        now, decided = now if seen is None else max(seen.now, self._run.now()), set[object]()
        any_ended = False
        for wait in waits:
            race = None if wait not in self.parked else self.parked[wait].race
            verdict = wait.judge(seen, now) if wait in self.parked and race not in decided else None
            if verdict is not None:
                any_ended = True
                if race is not None and not is_bad_end(verdict):
                    # What the others of a race wait for is not used up by them as well.
                    decided.add(race)
                self.resolve(wait, verdict)
        return any_ended

    async def _give_up(self) -> None:
        """Gives the lease up until one branch can go on; if one can already, the lease is kept."""
        self.is_giving_up = True
        try:
            is_kept = await give_up(self._run, list(self.parked))
        finally:
            self.is_giving_up = False
        if self._run.loss is not None:
            return
        if not is_kept:
            self._run.is_given_up = True
            self._run.unwind()
            return
        self.tell_cancel()
        self._empty_wakes = 0 if await self._judge(look=True) else self._empty_wakes + 1
        if self._empty_wakes >= _MOST_EMPTY_WAKES:
            raise InvalidRequest("wait_not_understood", "the store says that a wait has ended, but none has")
