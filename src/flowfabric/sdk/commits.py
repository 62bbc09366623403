"""Writing records: those that are made in the same moment share a commit, and those that can wait ride with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from flowfabric.core.errors import FlowFabricError, NotFound, Refused, Unavailable
from flowfabric.core.graph import ChildSubmission
from flowfabric.core.limits import BATCH
from flowfabric.core.requests import Step
from flowfabric.sdk.errors import Unwind
from flowfabric.sdk.journal import Record

if TYPE_CHECKING:
    from uuid import UUID

    from flowfabric.sdk.run import Run

T = TypeVar("T")
_LOST = frozenset({"lease_expired", "lease_revoked", "stale_lease", "execution_not_active", "execution_not_found"})
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0


class Commits:
    """What a run has still to write, and the commit that is under way."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._unwritten: dict[str, Record] = {}
        self._children: list[tuple[ChildSubmission, asyncio.Future[UUID]]] = []
        self._last: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    def ride(self, record: Record) -> None:
        """Writes the record with the next commit."""
        self._run.calls.journal.add(record)
        self._unwritten[record.path] = record

    def forget(self, record: Record) -> None:
        """The record is stored already, whatever was to be written under its path."""
        self._run.calls.journal.add(record)
        self._unwritten.pop(record.path, None)

    async def write(self, record: Record) -> None:
        """Returns once the record is stored."""
        self.ride(record)
        await undisturbed(self._flushed())
        self._run.calls.check_over()

    async def submit(self, child: ChildSubmission, record: Record) -> UUID:
        """The id of a child that is stored together with the record of it."""
        self.ride(record)
        answer: asyncio.Future[UUID] = asyncio.get_running_loop().create_future()
        self._children.append((child, answer))
        await undisturbed(self._flushed())
        self._run.calls.check_over()
        return answer.result()

    async def flushed(self) -> None:
        """Returns when everything is written that is still to be."""
        while self._unwritten and self._run.loss is None:
            await undisturbed(self._flushed())

    async def drained(self) -> None:
        """Returns when no commit is under way."""
        while self._last is not None and not self._last.done():
            await asyncio.wait([self._last])

    async def carry(self, operation: Callable[[tuple[Step, ...]], Awaitable[T]], *, goes_on: bool = False) -> T | None:
        """The answer of an operation that takes along what is still to be written; more than fits is written before.
        None if the lease was lost meanwhile. `goes_on`: the lease is kept."""
        await self.drained()
        while len(self._unwritten) > BATCH - 1:
            await undisturbed(self._flushed())
        records = list(self._unwritten.values())
        self._unwritten.clear()
        return await self._stored(records, operation, goes_on=goes_on)

    def _flushed(self) -> asyncio.Task[None]:
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._flush(self._last))
            self._last = self._next
        return self._next

    async def _flush(self, before: asyncio.Task[None] | None) -> None:
        if before is not None and not before.done():
            await asyncio.wait([before])
        self._next = None
        leases, fence = self._run.engine.leases, self._run.lease.fence
        records = list(self._unwritten.values())[:BATCH]
        children, self._children = self._children[:BATCH], self._children[BATCH:]
        for record in records:
            del self._unwritten[record.path]
        if children:
            submissions = [child for child, _ in children]
            answers = await self._stored(records, lambda steps: leases.submit_children(fence, submissions, steps=steps))
            for (_, future), answer in zip(children, answers or (), strict=False):
                future.set_result(answer.id)
        elif records:
            await self._stored(records, lambda steps: leases.checkpoint(fence, steps))

    async def _stored(
        self, records: Sequence[Record], operation: Callable[[tuple[Step, ...]], Awaitable[T]], *,
        goes_on: bool = True,
    ) -> T | None:  # fmt: skip
        """The answer of an operation that stores these records; if it is refused, they are still to be written."""
        run = self._run
        for record in records:
            run.probe.recording(run, record)
        steps = tuple(record.to_step() for record in records)
        try:
            answer = await insist(run, lambda: operation(steps))
        except FlowFabricError:
            self._unwritten = {record.path: record for record in records} | self._unwritten
            raise
        if goes_on and run.loss is None:
            for record in records:
                run.probe.recorded(run, record)
        return answer


async def insist(run: Run, operation: Callable[[], Awaitable[T]]) -> T | None:
    """The answer of the store, asked again while it cannot answer; None if the lease was lost meanwhile."""
    pause_s = _FIRST_PAUSE_S
    while run.loss is None:
        try:
            return await operation()
        except Unavailable:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        except (Refused, NotFound) as error:
            if not means_lost(error):
                raise
            run.lease_lost(error)
    return None


def means_lost(error: FlowFabricError) -> bool:
    """True if the store says that the lease is no longer ours."""
    return error.code in _LOST


async def undisturbed(commit: asyncio.Future[None]) -> None:
    """Waits for a commit to its end. Whoever cancels the caller meanwhile is too late: what is stored has happened, and
    the caller must see it, as every later run will."""
    while True:
        try:
            await asyncio.shield(commit)
        except asyncio.CancelledError:
            if commit.cancelled():
                raise Unwind from None
        else:
            return
