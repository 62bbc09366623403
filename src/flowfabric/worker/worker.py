"""A worker claims executions, runs them, and leaves no lease behind when it stops.

    async with Worker(engine, runner) as worker:    # works from here on
        await worker.run()                          # … until `worker.stop()` is called

When a worker stops, it makes no further claims and releases unstarted leases. It asks active runs to unwind within the
grace period. Then it notifies the remaining runs of the loss of their lease, and releases their leases. A released
lease uses up no attempt. If the store does not respond, the worker stops nevertheless, and its leases expire.
`run_until_signal` runs a worker until SIGTERM or SIGINT.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from types import FrameType
from typing import Any, Self

from flowfabric.core import validation
from flowfabric.core.errors import FlowFabricError
from flowfabric.core.executions.records import WorkerId
from flowfabric.engine.engine import Engine
from flowfabric.runtime.runner import Runner
from flowfabric.runtime.threads import ThreadPools
from flowfabric.worker.active_runs import ActiveRuns, Slots
from flowfabric.worker.background import run_background_jobs, run_in_background
from flowfabric.worker.claimer import ClaimCriteria, Claimer
from flowfabric.worker.heartbeat import WorkerHeartbeat, new_worker_id
from flowfabric.worker.leases import LeaseTable, OpenEngine
from flowfabric.worker.shutdown import CLEANUP_S, Deadline, drain
from flowfabric.worker.start_check import warn_of_stuck_work

_log = logging.getLogger("flowfabric.worker")
MAX_SLOTS = 10_000
# The engine closes and the interpreter ends within this time.
_EXIT_MARGIN_S = 1.5
Close = Callable[[float | None], Coroutine[Any, Any, None]]


class Worker:
    """Runs executions of an engine inside its `async with` block.

    `open_renewal_engine` opens a second engine for the thread that renews leases, so that a blocked event loop loses no
    leases. Without it, leases are renewed in the worker's loop, as a store with a single connection requires. With
    `reconcile`, the worker also runs the engine's reconcilers; one such worker per process is enough. `threads` run
    plain functions and are closed with the worker. `grace` is the time that active runs have to unwind when the block
    ends. `place` names the store and the namespace in the log.
    """

    def __init__(
        self,
        engine: Engine,
        runner: Runner,
        *,
        name: str | None = None,
        concurrency: int = 16,
        lanes: Sequence[str] = ("default",),
        capabilities: Collection[str] = (),
        lease_ttl: validation.Duration = 30,
        reconcile: bool = True,
        open_renewal_engine: OpenEngine | None = None,
        threads: ThreadPools | None = None,
        grace: validation.Duration = 30,
        place: str = "",
    ) -> None:
        ttl = validation.duration(lease_ttl, "lease_ttl", validation.MIN_LEASE_TTL, validation.MAX_LEASE_TTL)
        slots = validation.integer(concurrency, "concurrency", 1, MAX_SLOTS)
        self._engine = engine
        self._criteria = ClaimCriteria(
            worker=new_worker_id(None if name is None else validation.name(name, "name")),
            lanes=validation.names(lanes, "lanes"),
            capabilities=validation.capabilities(capabilities, "capabilities"),
            lease_ttl=ttl,
            kinds=lambda: runner.kinds,
            is_yielding=lambda: runner.is_yielding,
        )
        self._place = place
        self._runner = runner
        self._reconcile = validation.boolean(reconcile, "reconcile")
        self._open_renewal_engine = open_renewal_engine
        self._grace = validation.duration(grace, "grace")
        self.threads = ThreadPools(slots) if threads is None else threads
        self._lease_table = LeaseTable()
        self._slots = Slots(slots, ttl.total_seconds())
        self._runs = ActiveRuns(engine, runner, self._slots, self._lease_table, self._on_store_lost)
        self._claimer = Claimer(
            engine,
            self._criteria,
            self._slots,
            self._lease_table,
            accept=self._runs.accept,
            give_back=self._runs.give_back,
            on_store_lost=self._on_store_lost,
        )
        self._heartbeat = WorkerHeartbeat(engine, self._criteria, slots, lambda: self.busy, lambda: runner.version)
        self._deadline = Deadline()
        self._stopped = asyncio.Event()
        self._stop_task: asyncio.Task[None] | None = None
        self._loss: FlowFabricError | None = None
        self._loss_task: asyncio.Task[None] | None = None
        self._is_awaited = False
        self._exit_stack = AsyncExitStack()

    @property
    def id(self) -> WorkerId:
        """The name of the worker and its registered instance."""
        return self._criteria.worker

    @property
    def busy(self) -> int:
        """The number of slots in use."""
        return self._slots.busy

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.callback(self.threads.close)
            stack.enter_context(self._engine.leases.report_locks_to(self._lease_table))
            open_engine, limit = self._open_renewal_engine, self._deadline.limit
            jobs = run_background_jobs(
                self._engine, open_engine, self._lease_table, self._criteria, self._runs.on_report, limit=limit
            )
            await stack.enter_async_context(jobs)
            if self._reconcile:
                await stack.enter_async_context(self._engine.reconcilers.run_in_background(self._on_store_lost))
            stack.push_async_callback(lambda: limit(self._heartbeat.leave()))
            await stack.enter_async_context(run_in_background(self._heartbeat.run()))
            await self._heartbeat.wait_begun()
            check = warn_of_stuck_work(self._engine, self.id.instance)
            await stack.enter_async_context(run_in_background(check))
            self._claimer.start()
            self._exit_stack = stack.pop_all()
        _log.info("Worker started as %s: %s", self.id.instance, self._describe(), extra=self._log_fields)
        return self

    @property
    def _log_fields(self) -> dict[str, str]:
        return {"worker": self.id.instance, "namespace": self._engine.namespace}

    def _describe(self) -> str:
        """Return what the worker serves."""
        criteria = self._criteria
        tasks = validation.list_some(self._runner.kinds) or "none yet"
        names = self._engine.claim_namespaces
        where = f"namespace{'s' if len(names) > 1 else ''} {', '.join(names)}"
        parts = [f"{self._place}, {where}" if self._place else where]
        parts += [f"lanes {', '.join(criteria.lanes)}", f"tasks {tasks}"]
        if criteria.capabilities:
            parts.append(f"capabilities {', '.join(criteria.capabilities)}")
        return "; ".join([*parts, f"{self._slots.total} slots", f"version {self._runner.version}"])

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def run(self) -> None:
        """Wait until the worker has stopped. Raise if it stopped because the store is lost for this process."""
        self._is_awaited = True
        await self._stopped.wait()
        if self._loss is not None:
            raise self._loss

    async def stop(self, grace: validation.Duration | None = None) -> None:
        """Drain the worker and wait until it has stopped. If this is called again, the grace that ends first counts."""
        seconds = (self._grace if grace is None else validation.duration(grace, "grace")).total_seconds()
        if not self._stopped.is_set():
            self._deadline.set(seconds)
        if self._stop_task is None:
            self._stop_task = asyncio.create_task(self._stop(), name="flowfabric-stop")
        await asyncio.shield(self._stop_task)

    def _on_store_lost(self, error: BaseException) -> None:
        """Stop immediately, because this process can neither record results nor release leases.

        Log one line, or let `run` raise the error.
        """
        if self._loss is None and isinstance(error, FlowFabricError):
            self._loss = error
            if not self._is_awaited:
                _log.error("Worker stops: %s", error)
            self._loss_task = asyncio.create_task(self.stop(0), name="flowfabric-loss")

    async def _stop(self) -> None:
        try:
            async with self._exit_stack:
                grace_over = self._deadline.grace_over
                await self._deadline.limit(drain(self._engine, self._claimer, self._runs, grace_over, self._loss))
        finally:
            self._deadline.cancel()
            self._stopped.set()
            _log.info("Worker stopped: %s", self.id.instance, extra=self._log_fields)


async def run_until_signal(
    entering: AbstractAsyncContextManager[Worker], close: Close | None = None, *, may_exit: bool = False
) -> None:
    """Run the worker until SIGTERM or SIGINT, then drain it. Call this only in the main thread.

    `close` closes the engine. It gets the number of seconds that are left of the shutdown, or None if there is no
    limit. With `may_exit`, the process exits if it has not ended in time, even if a thread never ends.
    """
    worker: Worker | None = None
    try:
        async with entering as worker:
            with stop_on_signals(worker, may_exit=may_exit):
                await worker.run()
    finally:
        if close is not None:
            await close(None if worker is None else worker._deadline.remaining_s)


@contextmanager
def stop_on_signals(
    worker: Worker, *, may_exit: bool = False, signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT)
) -> Iterator[asyncio.Event]:
    """Stop the worker on one of the signals inside the block. A second SIGINT ends the process immediately.

    Yield an event that is set by the first signal. The handlers are set by `signal.signal`, not on the event loop, so
    that they work while the loop is blocked.
    """
    loop = asyncio.get_running_loop()
    stops: list[asyncio.Task[None]] = []
    received = asyncio.Event()
    interrupted = False

    def stop(name: str) -> None:
        received.set()
        if not stops:
            _log.info("Received %s, draining", name)
            if name == "SIGINT" and worker.busy:
                what = "1 execution" if worker.busy == 1 else f"{worker.busy} executions"
                _log.warning("Waiting for %s; press Ctrl-C again to stop now", what)
            stops.append(asyncio.ensure_future(worker.stop()))

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if number == signal.SIGINT and interrupted:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
        interrupted = interrupted or number == signal.SIGINT
        if may_exit and not stops:
            _exit_after(worker._grace.total_seconds() + CLEANUP_S)
        loop.call_soon_threadsafe(stop, signal.Signals(number).name)

    former = {number: signal.signal(number, on_signal) for number in signals}
    try:
        yield received
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _exit_after(seconds: float) -> None:
    """End the process some time after these seconds, if it still runs."""
    timer = threading.Timer(seconds + _EXIT_MARGIN_S, _exit_now)
    timer.daemon = True
    timer.start()


def _exit_now() -> None:
    _log.error("Process did not end in time and exits now; leases that were not returned expire")
    logging.shutdown()
    os._exit(1)
