"""Writing of records. Records of concurrent calls share a commit, and records that can wait join the next commit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from flowfabric.core import fast_dataclass
from flowfabric.core.errors import FlowFabricError, NotFound, Refused, Unavailable, is_permanent
from flowfabric.core.executions.attempts import StepRetry
from flowfabric.core.executions.requests import Step
from flowfabric.core.flows.graph import ChildSubmission
from flowfabric.core.validation import MAX_BATCH
from flowfabric.runtime.journal import Record
from flowfabric.values import failures
from flowfabric.values.errors import Unwind

if TYPE_CHECKING:
    from uuid import UUID

    from flowfabric.runtime.run import TaskRun

T = TypeVar("T")
_MAX_MESSAGE_CHARACTERS = 1_000
_LOST_CODES = frozenset(
    {"lease_expired", "lease_revoked", "stale_lease", "execution_not_active", "execution_not_found"}
)
INITIAL_PAUSE_S = 0.05
MAX_PAUSE_S = 2.0


@fast_dataclass.record(frozen=True, slots=True)
class EncodedRecord:
    """A record, and the same record as the step that the engine stores. `retry` is set if a try of the step failed."""

    record: Record
    step: Step
    retry: StepRetry | None = None


class RecordWriter:
    """The unwritten records of a run, and the commit in progress."""

    def __init__(self, run: TaskRun) -> None:
        self._run = run
        self._unwritten: dict[str, EncodedRecord] = {}
        self._children: list[tuple[ChildSubmission, asyncio.Future[UUID]]] = []
        self._last: asyncio.Future[Any] | None = None
        self._next: asyncio.Task[None] | None = None

    def enqueue(self, record: Record, retry: StepRetry | None = None) -> EncodedRecord:
        """Add the record to the next commit.

        Raise here if the record cannot be stored, so that the other records of that commit are not affected.
        """
        encoded = EncodedRecord(record, record.to_step(), retry)
        self._run.calls.journal.add(record)
        self._unwritten[record.path] = encoded
        return encoded

    def report(self, record: Record) -> None:
        """Start to store the record of a step that will be tried again, with an event for people.

        The wait for the next try may be long, and its commit would be the first to store the record.
        """
        self.enqueue(record, _retry_of(record))
        self._start_flush().add_done_callback(_retrieve_error)

    def discard(self, record: Record) -> None:
        """Add a record that is already stored to the journal, and drop an unwritten record of the same path."""
        self._run.calls.journal.add(record)
        self._unwritten.pop(record.path, None)

    async def write(self, record: Record) -> None:
        """Store the record, and return when it is stored."""
        mine = self.enqueue(record)
        if len(self._unwritten) == 1 and not self._children and self._is_idle and self._run.loss is None:
            await self._write_alone(mine)
        else:
            await shield(self._start_flush())
        while self._unwritten.get(record.path) is mine and self._run.loss is None:
            await shield(self._start_flush())
        self._run.calls.check_over()

    async def submit(self, child: ChildSubmission, record: Record | None) -> UUID:
        """Store a child together with the record of its submit, if any, and return the child's id."""
        if record is not None:
            self.enqueue(record)
        child_id: asyncio.Future[UUID] = asyncio.get_running_loop().create_future()
        self._children.append((child, child_id))
        while not child_id.done() and self._run.loss is None:
            await shield(self._start_flush())
        self._run.calls.check_over()
        return child_id.result()

    async def flush(self) -> None:
        """Write all unwritten records, and return when they are stored."""
        while self._unwritten and self._run.loss is None:
            await shield(self._start_flush())

    async def wait_idle(self) -> None:
        """Return when no commit is in progress."""
        while self._last is not None and not self._last.done():
            await asyncio.wait([self._last])

    async def commit_with(
        self, operation: Callable[[tuple[Step, ...]], Awaitable[T]], *, keeps_lease: bool = False
    ) -> T | None:
        """Run an operation that also stores the unwritten records. Return its outcome, or None if the lease was lost.

        Records that do not fit into the operation's commit are written before the operation. `keeps_lease` is True if
        the operation does not give up the lease.
        """
        await self.wait_idle()
        while len(self._unwritten) > MAX_BATCH - 1:
            await shield(self._start_flush())
        records = list(self._unwritten.values())
        self._unwritten.clear()
        stored = asyncio.get_running_loop().create_task(self._write(records, operation, keeps_lease=keeps_lease))
        self._last = stored
        await shield(stored)
        return stored.result()

    async def finish(self, operation: Callable[[tuple[Step, ...]], Awaitable[T]]) -> T | None:
        """Write all records, then run the operation that ends the run. Return None if the lease was lost.

        Without records, the operation can share a database statement with those of other runs. It also needs no
        separate asyncio task, since it can be repeated if it is cancelled.
        """
        await self.flush()
        if self._is_idle:
            try:
                return await retry_while_owned(self._run, lambda: operation(()))
            except asyncio.CancelledError:
                pass
        return await self.commit_with(operation)

    @property
    def _is_idle(self) -> bool:
        return self._next is None and (self._last is None or self._last.done())

    async def _write_alone(self, mine: EncodedRecord) -> None:
        """Write a single record without a new asyncio task, which is faster if a function runs one step after another.

        If this call is cancelled or the store refuses the record, the record stays unwritten.
        """
        run = self._run
        run.hooks.record_starting(run, mine.record)
        if not run.owns_lease():
            return
        stored = self._last = run.engine.leases.checkpoint_nowait(run.lease.fence, (mine.step,))
        del self._unwritten[mine.record.path]
        try:
            await stored
        except (FlowFabricError, asyncio.CancelledError):
            self._unwritten = {mine.record.path: mine} | self._unwritten
            return
        if run.loss is None:
            run.hooks.record_stored(run, mine.record)

    def _start_flush(self) -> asyncio.Task[None]:
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._flush(self._last))
            self._last = self._next
        return self._next

    async def _flush(self, before: asyncio.Future[Any] | None) -> None:
        if before is not None and not before.done():
            await asyncio.wait([before])
        self._next = None
        leases, fence = self._run.engine.leases, self._run.lease.fence
        await self._report_retries()
        children, self._children = self._children[:MAX_BATCH], self._children[MAX_BATCH:]
        records = self._take({child.key for child, _ in children})
        if children:
            await self._submit(children, records)
        elif records:
            await self._write(records, lambda steps: leases.checkpoint(fence, steps))

    async def _report_retries(self) -> None:
        """Write the records of steps that are tried again, after all earlier records except those of new children."""
        if all(encoded.retry is None for encoded in self._unwritten.values()):
            return
        leases, fence = self._run.engine.leases, self._run.lease.fence
        keys = {child.key for child, _ in self._children}
        paths = [path for path in self._unwritten if path not in keys][:MAX_BATCH]
        records = [self._unwritten.pop(path) for path in paths]
        retries = [encoded.retry for encoded in records if encoded.retry is not None]
        await self._write(records, lambda steps: leases.retry_steps(fence, retries, steps))

    def _take(self, first: set[str]) -> list[EncodedRecord]:
        """Remove and return as many unwritten records as fit into a commit, first those with the paths in `first`."""
        paths = sorted(self._unwritten, key=lambda path: path not in first)[:MAX_BATCH]
        return [self._unwritten.pop(path) for path in paths]

    async def _submit(
        self, children: Sequence[tuple[ChildSubmission, asyncio.Future[UUID]]], records: Sequence[EncodedRecord]
    ) -> None:
        leases, fence, submissions = self._run.engine.leases, self._run.lease.fence, [child for child, _ in children]
        try:
            outcomes = await self._write(records, lambda steps: leases.submit_children(fence, submissions, steps=steps))
        except FlowFabricError:
            # The children were not stored, so drop the records of their submits.
            for child in submissions:
                self._unwritten.pop(child.key, None)
            raise
        for (_, future), outcome in zip(children, outcomes or (), strict=False):
            future.set_result(outcome.id)

    async def _write(
        self,
        records: Sequence[EncodedRecord],
        operation: Callable[[tuple[Step, ...]], Awaitable[T]],
        *,
        keeps_lease: bool = True,
    ) -> T | None:
        """Run an operation that stores these records. If the store refuses it, the records stay unwritten."""
        run = self._run
        for encoded in records:
            run.hooks.record_starting(run, encoded.record)
        steps = tuple(encoded.step for encoded in records)
        try:
            outcome = await retry_while_owned(run, lambda: operation(steps))
        except FlowFabricError:
            self._unwritten = {encoded.record.path: encoded for encoded in records} | self._unwritten
            raise
        if keeps_lease and run.loss is None:
            for encoded in records:
                run.hooks.record_stored(run, encoded.record)
        return outcome


def _retry_of(record: Record) -> StepRetry:
    """Return the retry that the record of a step with a failed try describes."""
    facts = record.facts
    info = failures.from_json(facts["error"])
    return StepRetry(
        step=record.path,
        tries=facts["tries"],
        max_tries=facts["retries"] + 1,
        at=datetime.fromisoformat(facts["due"]),
        message=f"{info.type}: {info.message}"[:_MAX_MESSAGE_CHARACTERS],
        category=info.category,
    )


def _retrieve_error(flush: asyncio.Future[Any]) -> None:
    """Retrieve the error of a commit that no call waits for. Its records stay unwritten, and a later commit raises."""
    if not flush.cancelled():
        flush.exception()


async def retry_while_owned(
    run: TaskRun, operation: Callable[[], Awaitable[T]], *, needs_lease: bool = True
) -> T | None:
    """Run an operation, and repeat it while the store is unavailable. Return None if the run has lost its lease.

    With `needs_lease`, treat a refusal as the loss of the lease if its error code means that.
    """
    pause_s = INITIAL_PAUSE_S
    while run.owns_lease():
        try:
            return await operation()
        except Unavailable as error:
            if is_permanent(error):
                run.lease_lost(error)
                return None
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)
        except (Refused, NotFound) as error:
            if not needs_lease or error.code not in _LOST_CODES:
                raise
            run.is_lease_ended = True
            run.lease_lost(error)
    return None


async def shield(commit: asyncio.Future[Any]) -> None:
    """Wait until a commit has ended, even if the caller is cancelled.

    A committed record is visible to every later run, so this run must see it too.
    """
    while True:
        try:
            await asyncio.shield(commit)
        except asyncio.CancelledError:
            if commit.cancelled():
                raise Unwind from None
        else:
            return
