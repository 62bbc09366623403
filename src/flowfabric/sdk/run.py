"""One run of a task under one lease: the function from its top, answered by what was recorded, until it ends or rests.

body ── makes calls (calls) ──► the journal answers, or the call is performed and recorded (commits)
  └─ every branch parked (resting) ──► one suspend with all open waits ──► Unwind at the parked awaits

From the commit that gives the lease up, nothing durable happens any more and the outcome of the body is ignored.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from flowfabric.core.errors import FlowFabricError, InvalidRequest
from flowfabric.core.outcomes import Lease
from flowfabric.sdk.bodies import Ending, cancel_code, run_body
from flowfabric.sdk.calls import Calls
from flowfabric.sdk.commits import Commits, insist
from flowfabric.sdk.ending import end, put_off
from flowfabric.sdk.errors import InputMismatch, LeaseLost, Unwind
from flowfabric.sdk.journal import Record, Scope
from flowfabric.sdk.probes import SILENT, Probe
from flowfabric.sdk.raw_tasks import cancel_left_over
from flowfabric.sdk.resting import Resting
from flowfabric.sdk.threads import ThreadPools
from flowfabric.sdk.units import Unit, require_unit

if TYPE_CHECKING:
    from flowfabric.engine.engine import Engine
    from flowfabric.sdk.app import App
    from flowfabric.sdk.tasks import Task

LOG = logging.getLogger("flowfabric")


class Run:
    """The performance of one lease."""

    def __init__(
        self, app: App, task: Task[..., Any], engine: Engine, lease: Lease, threads: ThreadPools, probe: Probe = SILENT
    ) -> None:
        self.app, self.task, self.engine, self.lease = app, task, engine, lease
        self.threads, self.probe = threads, probe
        self.loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.is_over = False
        self.is_given_up = False
        self.is_draining = False
        self.must_restart = False
        self.loss: FlowFabricError | None = None
        self.divergence: str | None = None
        self.mismatch: InputMismatch | None = None
        self.continuation: bytes | None = None
        self.cancel_due_at = lease.cancel_due_at
        self.seed = lease.generation
        self.dropped: asyncio.Future[None] | None = None
        self.beside: set[asyncio.Task[None]] = set()
        self.raw_tasks: set[asyncio.Task[Any]] = set()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.calls = Calls(self)
        self.commits = Commits(self)
        self.resting = Resting(self)
        self.in_flight: dict[asyncio.Task[Any], Unit] = {}
        self._body = Unit(self, Scope(), is_plain=not self.task.is_async)

    async def perform(self) -> None:
        """Runs the body until the lease is ended, given up or lost."""
        try:
            await _load(self, may_be_new=True)
            ending = await self._run_once()
            while self.must_restart:
                await _restart(self)
                ending = await self._run_once()
            await end(self, ending)
        except Unwind:
            pass
        except FlowFabricError as error:
            LOG.warning("%s %s is put off: %s", self.task.name, self.lease.execution_id, error)
            await put_off(self, error)
        finally:
            _dissolve(self)

    def __getattr__(self, name: str) -> Any:
        """What is asked for after the end: nothing durable happens any more."""
        if name in ("calls", "commits", "resting"):
            raise self.reason_to_leave()
        raise AttributeError(name)

    async def _run_once(self) -> Ending:
        self.probe.begins(self)
        self.resting.goes()
        ending = await run_body(self, self._body)
        await cancel_left_over(self)
        await self.resting.settled()
        if not self.is_over and ending.error is None and self.mismatch is None:
            for decide in self.calls.accidents.gone_by():
                await decide()
            loose = self.calls.never_awaited()
            if loose is not None:
                return Ending(error=loose)
            report = self.calls.journal.unreached(self._body.scope)
            self.divergence = report and f"{self.task.name} {self.lease.execution_id}: {report}"
        return ending

    def lease_lost(self, error: FlowFabricError) -> None:
        """Stops everything: the lease is no longer ours."""
        self.loss = error
        if not self.is_over:
            self.abandon()

    def abandon(self) -> None:
        """Leaves the body wherever it is, and cancels what awaits something of its own. May be called in any thread."""
        self.is_over = True
        self.on_loop(self._abandon)

    def _abandon(self) -> None:
        cancel_code(self, {self._body})
        self._leave()

    def cancel_requested(self, due_at: datetime) -> None:
        """Lets the body clean up: it is told at the open wait, or at the next durable call."""
        self.cancel_due_at = due_at
        self.resting.tell_cancel()

    def drain(self) -> None:
        """Unwinds at the next durable call; steps in flight finish and are recorded first."""
        self.is_draining = True
        if self.resting.active == 0 and self.resting.parked:
            self.unwind()

    def news(self) -> None:
        """Something may have ended a parked wait."""
        self.resting.look_again()

    def restart(self) -> None:
        """Runs the body again from the top under the same lease: tests of determinism do it at every record."""
        self.must_restart = True
        self.unwind()

    def unwind(self) -> None:
        """Leaves the body: nothing durable happens in it from now on. May be called in a thread of the body."""
        self.is_over = True
        self.on_loop(self._leave)

    def on_loop(self, call: Callable[..., object], *args: Any) -> None:
        """Calls it on the loop: now, if this is the loop's thread, else soon."""
        if threading.get_ident() == self._thread:
            call(*args)
        else:
            self.loop.call_soon_threadsafe(call, *args)

    def _leave(self) -> None:
        for task in self.in_flight:
            task.cancel()
        for wait, unit in reversed(list(self.resting.parked.items())):
            self.resting.resolve(wait, self.calls.tell(unit))

    def reason_to_leave(self) -> Unwind:
        """What is raised in the body so that it is left."""
        return LeaseLost() if self.loss is not None else Unwind()

    def now(self) -> datetime:
        """About the store's time, never before the lease was given out."""
        return max(self.engine.now(), self.lease.acquired_at)


async def _load(run: Run, *, may_be_new: bool) -> None:
    """Reads the journal, unless nobody has had a lease before."""
    if may_be_new and run.lease.epoch <= 1:
        return
    steps = await insist(run, lambda: run.engine.leases.recorded(run.lease.fence)) or ()
    for step in steps:
        run.calls.remember(Record.from_step(step))
    # What a replay has kept still answers, so what was drawn before it must be drawn again.
    run.seed = steps[0].generation if steps else run.lease.generation


async def _restart(run: Run) -> None:
    await run.commits.flushed()
    await run.commits.drained()
    run.must_restart, run.is_over = False, run.loss is not None
    run._begin_anew()
    await _load(run, may_be_new=False)


def _dissolve(run: Run) -> None:
    """Takes the run apart, so that nothing of it waits for the garbage collector."""
    run.is_over = True
    del run.calls, run.commits, run.resting, run._body


class Runner:
    """Performs the tasks of an app."""

    def __init__(self, app: App, threads: ThreadPools, probe: Probe = SILENT) -> None:
        self._app, self._threads, self._probe = app, threads, probe

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds of all tasks that the app has registered."""
        return tuple(self._app.tasks)

    def begin(self, engine: Engine, lease: Lease) -> Run:
        """The run of a lease."""
        return Run(self._app, self._app.tasks[lease.kind], engine, lease, self._threads, self._probe)


def continue_with(task: Task[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> NoReturn:
    """Ends the run; the same execution begins anew with these arguments and nothing recorded."""
    unit = require_unit("continue_with")
    unit.run.calls.check_alive(unit)
    if task.name != unit.run.task.name:
        message = f"{unit.run.task.name} can only be continued with arguments of its own; submit {task.name} instead"
        raise InvalidRequest("other_task", message)
    unit.run.continuation = task.inputs.pack(args, dict(kwargs))
    unit.run.unwind()
    raise Unwind
