"""Workers of an app. They run until a signal, until one execution has ended, or inside a block on the caller's loop."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
from collections.abc import AsyncIterator, Collection, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from flowfabric.app.client_thread import running_loop
from flowfabric.app.store_address import redact_password
from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest
from flowfabric.values.aliases import Duration

if TYPE_CHECKING:
    from flowfabric.app.app import App
    from flowfabric.app.task import Task
    from flowfabric.engine.engine import Engine
    from flowfabric.runtime.results import FinalOutcome
    from flowfabric.worker import Worker

T = TypeVar("T")
DEFAULT_LANE = "default"
DEFAULT_LEASE = "30s"
DEFAULT_CONCURRENCY = 16
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# With this mark, pytest leaves out the frames of this module, so that a failed test shows the lines of the user.
__tracebackhide__ = True
_log = logging.getLogger("flowfabric.worker")


def run_until_signalled(app: App, options: Mapping[str, Any]) -> None:
    """Run a worker in a new event loop until SIGTERM or SIGINT."""
    with _log_to_stderr(logging.INFO):
        _run_in_own_loop(_work_until_signalled(app, options))


def run_until_ended(app: App, task: Task[..., T], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> T:
    """Submit an execution, and run a worker in a new event loop until the execution has ended."""
    with _log_to_stderr(logging.WARNING):
        end = _run_in_own_loop(_work_until_ended(app, task, args, kwargs))
    value: T = end.value()
    return value


@asynccontextmanager
async def enter_worker(app: App, **options: Any) -> AsyncIterator[Worker]:
    """Run a worker on the running event loop inside the block."""
    async with new_worker(app, await app.engine(), **options) as worker:
        yield worker


def new_worker(
    app: App,
    engine: Engine,
    *,
    concurrency: int = DEFAULT_CONCURRENCY,
    lanes: Collection[str] | None = None,
    capabilities: Collection[str] = (),
    lease: Duration = DEFAULT_LEASE,
) -> Worker:
    """Return a worker for the tasks of an app. The caller must start the worker.

    Without `lanes`, it serves all lanes of the app. A thread with a second engine renews the leases. For a store in
    memory, which a second engine could not open, the worker's own engine renews them.
    """
    from flowfabric.runtime.run import TaskRunner
    from flowfabric.runtime.threads import ThreadPools
    from flowfabric.worker import Worker

    app.check()
    served = lanes_of(app) if lanes is None else validation.names(lanes, "lanes")
    threads = ThreadPools(concurrency)
    in_memory = app.store.endswith(":memory:") or app.engines.is_adopted
    worker = Worker(
        engine,
        TaskRunner(app, threads),
        concurrency=concurrency,
        lanes=served,
        capabilities=capabilities,
        lease_ttl=lease,
        open_renewal_engine=None if in_memory else partial(app.engines.opener, app.store, pool_size=1, migrate=False),
        threads=threads,
        place=f"store {redact_password(app.store)}",
    )
    _warn_of_other_lanes(app, served)
    return worker


def lanes_of(app: App) -> tuple[str, ...]:
    """Return the lane `default` and the lanes of the app's tasks."""
    return tuple(sorted({DEFAULT_LANE, *(task.settings.lane for task in app.tasks.values())}))


def _warn_of_other_lanes(app: App, served: Collection[str]) -> None:
    """Warn about tasks of the app whose lane the worker does not serve."""
    lanes = {name: task.settings.lane for name, task in app.tasks.items() if task.settings.lane not in served}
    if lanes:
        named = validation.list_some([f"{name} (lane {lane})" for name, lane in lanes.items()])
        _log.warning("This worker does not serve the lanes of %s; another worker must serve them", named)


async def _work_until_signalled(app: App, options: Mapping[str, Any]) -> None:
    from flowfabric.worker import run_until_signal

    await run_until_signal(enter_worker(app, **options), app.engines.close)


async def _work_until_ended(
    app: App, task: Task[..., T], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> FinalOutcome:
    """Submit an execution, and run a worker for all lanes and capabilities of the app until the execution has ended."""
    from flowfabric.app.handle import wait_for_end

    async with app:
        app.check()
        handle = await task.submit(*args, **kwargs)
        submission = task.submission_of(b"")
        lanes = {submission.lane, *lanes_of(app)}
        capabilities = {*submission.requires, *(name for each in app.tasks.values() for name in each.settings.requires)}
        async with enter_worker(app, lanes=sorted(lanes), capabilities=capabilities) as worker:
            return await _wait_unless_interrupted(wait_for_end(handle), worker)


class _Interrupted(Exception):
    """SIGINT has stopped the worker."""


async def _wait_unless_interrupted(work: Coroutine[Any, Any, T], worker: Worker) -> T:
    """Return the result of `work`. On SIGINT, stop the worker and raise. Only the main thread receives signals."""
    from flowfabric.worker import stop_on_signals

    if threading.current_thread() is not threading.main_thread():
        return await work
    waiting = asyncio.ensure_future(work)
    with stop_on_signals(worker, signals=(signal.SIGINT,)) as interrupted:
        stopping = asyncio.ensure_future(interrupted.wait())
        try:
            await asyncio.wait([waiting, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not interrupted.is_set():
                return waiting.result()
            await worker.stop()
            raise _Interrupted
        finally:
            for task in (waiting, stopping):
                task.cancel()
            await asyncio.gather(waiting, stopping, return_exceptions=True)


def _run_in_own_loop(work: Coroutine[Any, Any, T]) -> T:
    from flowfabric.worker import event_loop_runner

    if running_loop() is not None:
        work.close()
        message = "app.run starts its own event loop, but one is running here; use `async with app.worker():`"
        raise InvalidRequest("loop_is_running", message)
    with event_loop_runner() as runner:
        try:
            return runner.run(work)
        except _Interrupted:
            raise KeyboardInterrupt from None


@contextmanager
def _log_to_stderr(level: int) -> Iterator[None]:
    """Write messages to standard error inside the block, unless the program has configured logging."""
    logger = logging.getLogger("flowfabric")
    if logger.hasHandlers():
        yield
        return
    handler, before = stderr_handler(), logger.level
    logger.addHandler(handler)
    if before == logging.NOTSET:
        logger.setLevel(level)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def stderr_handler() -> logging.Handler:
    """Return a handler that writes messages to standard error, with time, level and logger."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    return handler
