"""Threads for plain functions.

Bodies of tasks, their branches and steps have separate pools. A body that waits for its step holds a thread. In a
single pool, bodies could occupy all threads, and no step could run. The threads are daemons, because a function that
never returns cannot be stopped, and must not keep the process from ending.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
MIN_BRANCH_THREADS = 32
_Job = tuple[Future[Any], Callable[[], Any]]


class DaemonThreads(Executor):
    """An executor with at most `max_threads` daemon threads, started on demand.

    If `keep_idle` is True, idle threads wait for the next call. Otherwise they end.
    """

    def __init__(self, max_threads: int, name: str, *, keep_idle: bool = True) -> None:
        self.max_threads = max_threads
        self._name, self._keep_idle = name, keep_idle
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._pending = 0
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run the call as soon as a thread is free. Return the future of the call immediately."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the worker has ended; its threads accept no calls")
            self._jobs.put((future, lambda: fn(*args, **kwargs)))
            self._pending += 1
            if self._threads < min(self._pending, self.max_threads):
                self._threads += 1
                threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = True) -> None:
        """Refuse further calls. Do not wait for running calls, which continue."""
        with self._lock:
            self._closed = True
            threads = self._threads
        while cancel_futures and not self._jobs.empty():
            if (job := self._jobs.get()) is not None:
                job[0].cancel()
        for _ in range(threads):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            self._run(*job)
            del job  # An idle thread must not keep the last call's arguments and result alive.

    def _next(self) -> _Job | None:
        if self._keep_idle:
            return self._jobs.get()
        with self._lock:
            if not self._jobs.empty():
                return self._jobs.get()
            self._threads -= 1
            return None

    def _run(self, future: Future[Any], call: Callable[[], Any]) -> None:
        runs = future.set_running_or_notify_cancel()
        result, error = _call(call) if runs else (None, None)
        # Update the count before setting the result, so that a caller who then submits again finds this thread free.
        with self._lock:
            self._pending -= 1
        if error is not None:
            future.set_exception(error)
        elif runs:
            future.set_result(result)


def _call(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return call(), None
    except BaseException as error:
        return None, error


class ThreadPools:
    """The threads of one worker: `tasks` for bodies, `steps` for steps, `branches` for branches of groups."""

    def __init__(self, size: int) -> None:
        self.tasks = DaemonThreads(size, "flowfabric-task")
        self.steps = DaemonThreads(size, "flowfabric-step")
        self._size = size
        self._branches: dict[int, DaemonThreads] = {}

    def branches(self, depth: int) -> DaemonThreads:
        """Return the threads for branches inside `depth` groups.

        A branch may wait for the branches of a group inside it, so each depth has its own threads. Each depth may have
        at least `MIN_BRANCH_THREADS` threads, so that a race can start all of its members.
        """
        if depth not in self._branches:
            self._branches[depth] = DaemonThreads(
                max(self._size, MIN_BRANCH_THREADS), "flowfabric-branch", keep_idle=False
            )
        return self._branches[depth]

    def close(self) -> None:
        """End the idle threads now, and each busy thread when its call returns."""
        self.tasks.shutdown()
        self.steps.shutdown()
        for branches in self._branches.values():
            branches.shutdown()
