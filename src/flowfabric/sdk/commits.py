"""Writing records: those that are made in the same moment share a commit, and those that can wait ride with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from flowfabric.core.errors import FlowFabricError, NotFound, Refused, Unavailable
from flowfabric.core.frozen import record as quick
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


@quick(frozen=True, slots=True)
class Encoded:
    """A record as it is to be stored."""

    record: Record
    step: Step


class Commits:
    """What a run has still to write, and the commit that is under way."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._unwritten: dict[str, Encoded] = {}
        self._children: list[tuple[ChildSubmission, asyncio.Future[UUID]]] = []
        self._last: asyncio.Future[Any] | None = None
        self._next: asyncio.Task[None] | None = None

    def ride(self, record: Record) -> Encoded:
        """Writes the record with the next commit. What cannot be stored is refused here, where it does no harm to
        others."""
        encoded = Encoded(record, record.to_step())
        self._run.calls.journal.add(record)
        self._unwritten[record.path] = encoded
        return encoded

    def forget(self, record: Record) -> None:
        """The record is stored already, whatever was to be written under its path."""
        self._run.calls.journal.add(record)
        self._unwritten.pop(record.path, None)

    async def write(self, record: Record) -> None:
        """Returns once the record is stored."""
        mine = self.ride(record)
        if len(self._unwritten) == 1 and not self._children and self._is_quiet and self._run.loss is None:
            await self._written_alone(mine)
        else:
            await undisturbed(self._flushed())
        while self._unwritten.get(record.path) is mine and self._run.loss is None:
            await undisturbed(self._flushed())
        self._run.calls.check_over()

    async def submit(self, child: ChildSubmission, record: Record) -> UUID:
        """The id of a child that is stored together with the record of it."""
        self.ride(record)
        answer: asyncio.Future[UUID] = asyncio.get_running_loop().create_future()
        self._children.append((child, answer))
        while not answer.done() and self._run.loss is None:
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
        stored = asyncio.get_running_loop().create_task(self._stored(records, operation, goes_on=goes_on))
        self._last = stored
        await undisturbed(stored)
        return stored.result()

    async def finish(self, operation: Callable[[tuple[Step, ...]], Awaitable[T]]) -> T | None:
        """The same for the end of a run, before which everything is written that is still to be: an end without records
        shares its statement with others. It needs no task of its own: if somebody disturbs it, it is asked again."""
        await self.flushed()
        if self._is_quiet:
            try:
                return await insist(self._run, lambda: operation(()))
            except asyncio.CancelledError:
                pass
        return await self.carry(operation)

    @property
    def _is_quiet(self) -> bool:
        return self._next is None and (self._last is None or self._last.done())

    async def _written_alone(self, mine: Encoded) -> None:
        """The short way for one record with nothing beside it, as of a function that takes one step after another. If
        it was disturbed, or the store did not take it, the record is still to be written."""
        run = self._run
        run.probe.recording(run, mine.record)
        if run.loss is not None:
            return
        stored = self._last = run.engine.leases.checkpointing(run.lease.fence, (mine.step,))
        del self._unwritten[mine.record.path]
        try:
            await stored
        except (FlowFabricError, asyncio.CancelledError):
            self._unwritten = {mine.record.path: mine} | self._unwritten
            return
        if run.loss is None:
            run.probe.recorded(run, mine.record)

    def _flushed(self) -> asyncio.Task[None]:
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._flush(self._last))
            self._last = self._next
        return self._next

    async def _flush(self, before: asyncio.Future[Any] | None) -> None:
        if before is not None and not before.done():
            await asyncio.wait([before])
        self._next = None
        leases, fence = self._run.engine.leases, self._run.lease.fence
        children, self._children = self._children[:BATCH], self._children[BATCH:]
        records = self._taken({child.key for child, _ in children})
        if children:
            await self._submit(children, records)
        elif records:
            await self._stored(records, lambda steps: leases.checkpoint(fence, steps))

    def _taken(self, first: set[str]) -> list[Encoded]:
        """As many of the unwritten records as fit into a commit, those under the first paths before the others."""
        paths = sorted(self._unwritten, key=lambda path: path not in first)[:BATCH]
        return [self._unwritten.pop(path) for path in paths]

    async def _submit(
        self, children: Sequence[tuple[ChildSubmission, asyncio.Future[UUID]]], records: Sequence[Encoded]
    ) -> None:
        leases, fence, submissions = self._run.engine.leases, self._run.lease.fence, [child for child, _ in children]
        try:
            answers = await self._stored(records, lambda steps: leases.submit_children(fence, submissions, steps=steps))
        except FlowFabricError:
            # Nothing says that a child is there which is not.
            for child in submissions:
                self._unwritten.pop(child.key, None)
            raise
        for (_, future), answer in zip(children, answers or (), strict=False):
            future.set_result(answer.id)

    async def _stored(
        self, records: Sequence[Encoded], operation: Callable[[tuple[Step, ...]], Awaitable[T]], *,
        goes_on: bool = True,
    ) -> T | None:  # fmt: skip
        """The answer of an operation that stores these records; if it is refused, they are still to be written."""
        run = self._run
        for item in records:
            run.probe.recording(run, item.record)
        steps = tuple(item.step for item in records)
        try:
            answer = await insist(run, lambda: operation(steps))
        except FlowFabricError:
            self._unwritten = {item.record.path: item for item in records} | self._unwritten
            raise
        if goes_on and run.loss is None:
            for item in records:
                run.probe.recorded(run, item.record)
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


async def persist(run: Run, operation: Callable[[], Awaitable[T]]) -> T | None:
    """The same for what does not need the lease: only the run's own loss ends it."""
    pause_s = _FIRST_PAUSE_S
    while run.loss is None:
        try:
            return await operation()
        except Unavailable:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return None


def means_lost(error: FlowFabricError) -> bool:
    """True if the store says that the lease is no longer ours."""
    return error.code in _LOST


async def undisturbed(commit: asyncio.Future[Any]) -> None:
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
