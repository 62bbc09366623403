"""Branches of a group that are to be ended: dropped, cancelled, let go, or waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID

from flowfabric.core.errors import FlowFabricError
from flowfabric.core.limits import BATCH
from flowfabric.sdk.bodies import cancel_code
from flowfabric.sdk.closing import close_waitpoints
from flowfabric.sdk.commits import insist, persist
from flowfabric.sdk.errors import Unwind
from flowfabric.sdk.running import Running
from flowfabric.sdk.units import Unit


class Branches(Running):
    """The members of one group being run, and how they are ended before their time."""

    async def drop(self, *, cancel_steps: bool) -> None:
        """Ends the members that are still running: nothing new happens in them. Steps that run are waited for, or
        cancelled; children are cancelled, waitpoints closed."""
        units = self.units()
        for unit in units:
            unit.drop()
        children, waitpoints = self.open_children(), self.open_waitpoints()
        if cancel_steps:
            self.cancel_code()
        self.run.resting.drop()
        await self._to_the_end(self._drop(units, children, waitpoints))

    async def _drop(self, units: Sequence[Unit], children: Sequence[UUID], waitpoints: Collection[str]) -> None:
        await self.cancel_children(children)
        await self.close_waitpoints(waitpoints)
        await self._all_ended()
        # Those that were just being submitted are there only now.
        await self.cancel_children([child for unit in units for child in unit.children])

    async def let_go(self) -> None:
        """Ends the members that are still running, and nothing of what they wait for."""
        for unit, _ in self._running.values():
            unit.drop()
        self.run.resting.drop()
        await self.ended()

    async def ended(self) -> None:
        """Returns when every member that was started has ended."""
        await self._to_the_end(self._all_ended())

    async def _all_ended(self) -> None:
        self.leave_out()
        async for _ in self.endings():
            pass

    async def _to_the_end(self, ending: Coroutine[Any, Any, None]) -> None:
        """Whoever gives the group up while its members are being ended comes too late, but need not wait for code that
        runs."""
        task = self.run.loop.create_task(ending)
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                if task.cancelled():
                    raise Unwind from None
                self.cancel_code()

    def cancel_code(self) -> None:
        """Cancels what members are about: steps that run, and other code that awaits something of its own."""
        cancel_code(self.run, set(self.units()))

    def units(self) -> list[Unit]:
        """The members that are running."""
        return [unit for unit, _ in self._running.values()]

    def open_children(self) -> list[UUID]:
        """The children that members wait for."""
        return [child for unit in self.units() for child in unit.children]

    def open_waitpoints(self) -> list[str]:
        """The keys of the waitpoints that are there for members alone."""
        return [key for unit in self.units() for key in unit.waitpoints]

    async def close_waitpoints(self, keys: Collection[str]) -> None:
        """Closes what members wait at: what comes there would be lost."""
        await close_waitpoints(self.run, keys, f"{self._group.path} has ended")

    async def cancel_children(self, children: Sequence[UUID]) -> None:
        """Cancels what members wait for; who has ended meanwhile has ended."""
        engine, fence, reason = self.run.engine, self.run.lease.fence, f"{self._group.path} has ended"
        for start in range(0, len(children), BATCH):
            some = children[start : start + BATCH]
            detached = await insist(self.run, partial(engine.leases.cancel_children, fence, some, reason)) or ()
            for child in detached:
                with suppress(FlowFabricError):
                    await persist(self.run, partial(engine.operator.cancel, child, reason, children=True))
