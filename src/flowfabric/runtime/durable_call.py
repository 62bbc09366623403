"""Durable calls. A call gets its identity and is matched with the journal when it is made; it runs when awaited."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeAlias, TypeVar

from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.executions.requests import StepStatus
from flowfabric.runtime.branch import BRANCH, Branch, drop_body
from flowfabric.runtime.journal import KEYED, CallId, Journal, Mismatch, Record, Scope
from flowfabric.runtime.log import LOG, log_fields
from flowfabric.runtime.waits import ConsumedSignals, DueTimeReached, Verdict, Wait, close_waitpoints
from flowfabric.values import guards
from flowfabric.values.errors import CancelRequested, Unwind

if TYPE_CHECKING:
    from flowfabric.runtime.run import TaskRun


Decide: TypeAlias = Callable[[], Awaitable[None]]


class UnrecordedFailures:
    """Groups of a run that failed with an error that is not recorded yet, each with a function that records it.

    What happens next depends on the task's function. If the function fails too, its next attempt runs the whole group
    again, so the waits of the other members must stay open. If the function continues, the group's failure is recorded
    and its members are ended. Code inside an `except` block for the failure may still raise it again, so that code
    does not count as continuing.
    """

    def __init__(self) -> None:
        self._failures: list[tuple[Branch, BaseException, Decide]] = []

    def __bool__(self) -> bool:
        return bool(self._failures)

    def add(self, branch: Branch, error: BaseException, decide: Decide) -> None:
        """Note the failure of a group that this branch awaited. `decide` records the failure later."""
        self._failures.append((branch, error, decide))

    def discard(self, branch: Branch) -> None:
        """Forget the failures of a branch whose code runs again from its top."""
        self._failures = [failure for failure in self._failures if not _is_within(failure[0], branch)]

    def take_passed(self, branch: Branch | None = None) -> list[Decide]:
        """Remove the failures after which the code of `branch` has continued, and return their `decide` functions.

        Without a `branch`, do this for all branches.
        """
        handled = _handled_errors()
        passed = [
            failure
            for failure in self._failures
            if _is_within(failure[0], branch) and not guards.contains(handled, failure[1])
        ]
        self._failures = [failure for failure in self._failures if not any(failure is each for each in passed)]
        return [decide for _, _, decide in passed]


def _is_within(branch: Branch | None, outer: Branch | None) -> bool:
    while outer is not None and branch is not None and branch is not outer:
        branch = branch.parent
    return branch is not None


def _handled_errors() -> list[BaseException]:
    """Return the errors whose `except` or `finally` blocks are running now."""
    errors, error = list[BaseException](), sys.exc_info()[1]
    while error is not None and not guards.contains(errors, error):
        errors.append(error)
        error = guards.context_of(error)
    return errors


WARN_RECORDS = 1_000
MAX_RECORDS = 10_000
MAX_UNWINDS = 100
_MAX_NAMED = 5
_ADVICE = "use poll for polling, continue_with for endless work, children for many parts"


class CallTracker:
    """Finds the record of each call of a run, and raises `Unwind` where the run must not continue."""

    def __init__(self, run: TaskRun) -> None:
        self._run = run
        self.journal = Journal()
        self.made_calls: list[DurableCall[Any]] = []
        self.unrecorded_failures = UnrecordedFailures()
        self.is_live = False
        self._has_records = False
        self.cancel_delivered = False
        self.is_cut_off = False
        self._unwinds: dict[Branch | None, int] = {}
        self._has_warned_records = False
        self._has_warned_swallowed = False
        self._zero_s: float | None = None

    @cached_property
    def signals(self) -> ConsumedSignals:
        """The signals that the waits of the execution have used. Most executions use none."""
        return ConsumedSignals()

    @property
    def is_replaying(self) -> bool:
        """True until the first call that no earlier run has recorded."""
        return self._has_records and not self.is_live

    def remember(self, record: Record) -> None:
        """Add a record of an earlier run."""
        self.journal.add(record)
        # The inputs of a flow's member and the consumed signals are recorded although no call was made.
        self._has_records = self._has_records or record.kind not in ("inputs", "signals")
        self._has_warned_records = len(self.journal) > WARN_RECORDS
        if record.facts.get("cancel_requested"):
            self.cancel_delivered = True
        if "used" in record.facts:
            self.signals.restore(record.facts)

    def match(self, scope: Scope, call_id: CallId) -> tuple[CallId, Record | None]:
        """Return the call with its record. If the call does not match the journal, hold the execution."""
        try:
            record = self.journal.expect(scope, call_id, check_digest=self._run.app.arguments == "hold")
        except Mismatch as mismatch:
            self.diverge(str(mismatch))
        if record is None:
            self._check_record_count()
            self.is_live = True
        elif not record.is_final:
            self.is_live = True
        elif self._run.app.arguments == "warn" and record.digest != call_id.digest:
            fields = log_fields(self._run.lease, call_id.path)
            LOG.warning("%s has other arguments than its record", call_id.path, extra=fields)
        return call_id, record

    def diverge(self, report: str) -> NoReturn:
        """Hold the execution, since its code no longer matches the journal."""
        run = self._run
        run.divergence = f"{run.task.name} {run.lease.execution_id}: {report}"
        run.unwind()
        raise Unwind

    def check_end(self, scope: Scope) -> str | None:
        """Return a report if a scope ended before calls that were recorded in it. Warn about calls with a key."""
        report = self.journal.report_unreached(scope)
        if report is None and (paths := self.journal.unmade_keyed_calls(scope)):
            named = validation.list_some(paths, _MAX_NAMED)
            LOG.warning(
                "%s %s ended without calls that were recorded with a key: %s",
                self._run.task.name,
                self._run.lease.execution_id,
                named,
                extra=log_fields(self._run.lease),
            )
        return report

    def check_alive(self, branch: Branch) -> None:
        """Raise if nothing durable may happen any longer in this run or branch."""
        self.check_over()
        if self._run.is_draining:
            # Running steps must finish and be recorded before the run unwinds.
            if not self._run.in_flight:
                self._run.unwind()
            raise self.unwind_reason(branch)
        if branch.is_dropped:
            raise Unwind

    def check_over(self) -> None:
        """Raise if the lease was given up or lost."""
        if self._run.is_over:
            raise self.unwind_reason(BRANCH.get())

    @property
    def has_unwound(self) -> bool:
        """True once `Unwind` was raised in any code of the body."""
        return bool(self._unwinds)

    def unwind_reason(self, branch: Branch | None) -> Unwind:
        """Return the exception that makes a branch unwind. Abandon the body if its code keeps catching `Unwind`."""
        # Count for each branch separately, since every branch of a run unwinds at least once.
        times = self._unwinds[branch] = self._unwinds.get(branch, 0) + 1
        if times >= MAX_UNWINDS:
            self.is_cut_off = True
            message = "%s keeps swallowing Unwind and is abandoned; let BaseException pass"
            LOG.error(message, self._run.task.name, extra=log_fields(self._run.lease))
            drop_body(self._run, self._run.body)
        elif self._unwinds[branch] > 1 and branch is not None and _continues(branch):
            self.warn_swallowed()
        return self._run.unwind_error()

    def warn_swallowed(self) -> None:
        """Warn once that the code of this task caught `Unwind` and continued."""
        if not self._has_warned_swallowed:
            self._has_warned_swallowed = True
            message = "%s swallowed Unwind, so its result is ignored; let BaseException pass"
            LOG.warning(message, self._run.task.name, extra=log_fields(self._run.lease))

    def check_cancel(self, call: DurableCall[Any]) -> None:
        """Raise `CancelRequested` at the first call without a recorded outcome, if a cancellation was requested.

        Each request is delivered only once.
        """
        if self._run.cancel_due_at is not None and not self.cancel_delivered:
            self.deliver_cancel(call)
            raise CancelRequested

    def deliver_cancel(
        self,
        call: DurableCall[Any],
        status: StepStatus = StepStatus.CANCELLED,
        ran: tuple[int, int] | None = None,
    ) -> None:
        """Record that the request to cancel was delivered at this call, so that every later run raises it here too.

        The status is `ABANDONED` if the call is a step whose function had begun.
        """
        self.cancel_delivered = True
        self._run.record_writer.enqueue(call.call_id.record(status, ran=ran, cancel_requested=True))

    def to_epoch_ms(self, monotonic_s: float) -> int:
        """Convert a time of this process's monotonic clock to the store's time, in milliseconds since 1970.

        The store's clock is read only once per run, because reading it takes longer than the rest of a step's record.
        """
        if self._zero_s is None:
            self._zero_s = self._run.now().timestamp() - time.monotonic()
        return round(1000 * (self._zero_s + monotonic_s))

    def find_never_awaited(self) -> InvalidRequest | None:
        """Return an error that names the calls that were made but never awaited, except calls of dropped branches."""
        paths = tuple(call.path for call in self.made_calls if not call.is_awaited and not call.branch.is_dropped)
        if not paths:
            return None
        message = f"made but never awaited: {', '.join(paths)}; put `await` before the call"
        return InvalidRequest("never_awaited", message, paths=paths)

    def close_unstarted(self) -> None:
        """Close the coroutines of groups that this run never started, so that Python does not warn about them."""
        for call in self.made_calls:
            if call.members:
                close_unstarted(call.members)

    def _check_record_count(self) -> None:
        number = len(self.journal)
        if number < WARN_RECORDS:
            return
        task, lease = self._run.task.name, self._run.lease
        if not self._has_warned_records:
            self._has_warned_records = True
            message = "%s %s has %d records; %s"
            LOG.warning(message, task, lease.execution_id, number, _ADVICE, extra=log_fields(lease))
        if number >= MAX_RECORDS:
            message = f"it has {number} records, the limit is {MAX_RECORDS}; {_ADVICE}"
            raise InvalidRequest("too_many_steps", message, limit=MAX_RECORDS)


def close_unstarted(members: Iterable[object]) -> None:
    """Close the coroutines that were created but never started."""
    for member in members:
        if inspect.iscoroutine(member) and inspect.getcoroutinestate(member) == inspect.CORO_CREATED:
            member.close()


def _continues(branch: Branch) -> bool:
    """Return True if the branch's own code calls this and the branch is not unwinding."""
    is_own = threading.get_ident() == branch.thread if branch.is_plain else asyncio.current_task() is branch.task
    error = sys.exc_info()[1]
    while error is not None and not guards.is_a(error, Unwind):
        error = guards.context_of(error)
    return is_own and error is None


T_co = TypeVar("T_co", covariant=True)


class DurableCall(Coroutine[None, None, T_co], Generic[T_co]):
    """The object that `step`, `sleep` and the other calls return.

    It is a coroutine, so that type checkers find a forgotten await and asyncio accepts it as a task.
    """

    pending_decisions: Sequence[Decide] = ()
    members: Sequence[Any] = ()

    def __init__(
        self, branch: Branch, name: str, kind: str, *, key: str | None = None, digest: str | None = None
    ) -> None:
        self.branch = branch
        self.run = branch.run
        self.is_stuck = self.run.calls.is_cut_off
        if self.is_stuck:
            self.call_id, self.record = CallId(name, "", KEYED, kind), None
        else:
            self.call_id, self.record = branch.match_next(name, kind, key=key, digest=digest)
        self.path = self.call_id.path
        self.is_awaited = False
        if self.run.calls.unrecorded_failures:
            self.pending_decisions = self.run.calls.unrecorded_failures.take_passed(branch)
        self._inner: Coroutine[Any, Any, T_co] | None = None
        self.run.calls.made_calls.append(self)

    @property
    def has_outcome(self) -> bool:
        """True if the outcome of this call is recorded. An abandoned call has none, unless it raised a request."""
        record = self.record
        if record is None or not record.is_final:
            return False
        return record.status is not StepStatus.ABANDONED or bool(record.facts.get("cancel_requested"))

    async def resolve(self) -> T_co:
        """Return the recorded outcome, or execute the call."""
        record, calls = self.record, self.run.calls
        if record is not None and record.is_final:
            if record.facts.get("cancel_requested"):
                raise CancelRequested
            if record.status is StepStatus.ABANDONED:
                # In an earlier run the code cancelled this call, and it must do so again. Wait for that.
                await asyncio.Event().wait()
            return self.replay(record)
        calls.check_alive(awaiting_branch(self))
        calls.check_cancel(self)
        return await self.execute()

    async def execute(self) -> T_co:
        """Do the work of the call, and record its outcome."""
        raise NotImplementedError

    def replay(self, record: Record) -> T_co:
        """Return or raise the recorded outcome."""
        raise NotImplementedError

    def open_wait(self, timeout: timedelta | None, **facts: Any) -> datetime | None:
        """Return the due time of a wait. The first run that reaches the call sets and records the due time."""
        if self.record is not None:
            due = self.record.facts.get("due")
            return None if due is None else datetime.fromisoformat(due)
        due_at = None if timeout is None else self.run.now() + timeout
        if due_at is not None:
            facts["due"] = due_at.isoformat()
        self.run.record_writer.enqueue(self.call_id.record(StepStatus.OPEN, **facts))
        return due_at

    async def await_verdict(self, wait: Wait) -> Verdict:
        """Wait until `wait` ends, and return how. If all branches wait, the run is suspended and this call unwinds.

        Only a branch of the task may wait. An asyncio task that the user started would not survive the suspension.
        """
        branch = awaiting_branch(self)
        if asyncio.current_task() is not branch.task:
            message = f"{self.path} waits, which your own asyncio task cannot do; await it in the task's function"
            raise InvalidRequest("wait_in_raw_task", message, path=self.path)
        wait.group = branch.wait_group
        opened = wait.own_waitpoints()
        branch.add_waitpoints(opened)
        suspender = self.run.suspender
        verdict = await suspender.wait(branch, wait)
        branch.remove_waitpoints(opened)
        bound = await suspender.close_opened(opened, f"{self.path} has ended")
        if bound and isinstance(verdict, DueTimeReached) and (suspender.waiting or suspender.active > 1):
            # A suspension that times out closes its waitpoints. Here only one of several waits has timed out.
            await close_waitpoints(self.run, bound, f"{self.path} has timed out")
        return verdict

    def begin(self) -> Coroutine[Any, Any, T_co]:
        """Start the call. Raise if the call was awaited before."""
        if self.is_awaited:
            message = f"{self.path} has been awaited already; keep its result"
            raise InvalidRequest("awaited_twice", message, path=self.path)
        self.is_awaited = True
        if self.pending_decisions:
            return self._begin_after(self.pending_decisions)
        return _never_return() if self.is_stuck else self.resolve()

    async def _begin_after(self, decides: Sequence[Decide]) -> T_co:
        """Record the failures of the groups that failed before this call, then start the call."""
        for decide in decides:
            await decide()
        return await self.resolve()

    def __await__(self) -> Generator[Any, None, T_co]:
        return self.begin().__await__()

    def send(self, value: None, /) -> Any:
        if self._inner is None:
            self._inner = self.begin()
        return self._inner.send(value)

    def throw(self, kind: Any, value: Any = None, traceback: TracebackType | None = None, /) -> Any:
        if self._inner is None:
            self._inner = self.begin()
        return self._inner.throw(kind if value is None else value)

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()


async def _never_return() -> Any:
    """Never return: the code around this call has swallowed `Unwind` too often.

    That code catches every exception that would end it. If the closing event loop cancelled its asyncio task, the task
    would continue, and the loop would never close. If the garbage collector closed the task, the code would run forever
    inside the collector. So a daemon thread keeps a reference to the task. What such a thread refers to is never
    collected, even when the process ends.
    """
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    asyncio._unregister_task(task)
    threading.Thread(target=_keep_alive, args=(task,), name="flowfabric-forsaken", daemon=True).start()
    await asyncio.Event().wait()


def _keep_alive(task: asyncio.Task[Any]) -> None:
    threading.Event().wait()


def awaiting_branch(call: DurableCall[Any]) -> Branch:
    """Return the branch that awaits the call, which may differ from the branch that made it."""
    return BRANCH.get() or call.branch
