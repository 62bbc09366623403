"""Threads for plain functions. Bodies of tasks, their branches and steps have separate pools: a body that waits for its
step holds a thread, so with a single pool as many bodies as threads would wait for each other for ever.

The threads are daemons. A function that never returns cannot be stopped, and must not keep the process from ending.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_FEWEST_BRANCHES = 32
_Job = tuple[Future[Any], Callable[[], Any]]


class DaemonThreads(Executor):
    """An executor of at most so many daemon threads, started when they are needed. They stay, or end as soon as there
    is nothing to do."""

    def __init__(self, most: int, name: str, *, stay: bool = True) -> None:
        self.most = most
        self._name, self._stay = name, stay
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._pending = 0
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """The future of a call in one of the threads, as soon as one is free."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the worker has ended; its threads take no more work")
            self._jobs.put((future, lambda: fn(*args, **kwargs)))
            self._pending += 1
            if self._threads < min(self._pending, self.most):
                self._threads += 1
                threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = True) -> None:
        """Takes no more calls. Those that run go on by themselves; nobody waits for them."""
        with self._lock:
            self._closed = True
            threads = self._threads
        while cancel_futures and not self._jobs.empty():
            self._cancel_next()
        for _ in range(threads):
            self._jobs.put(None)

    def _cancel_next(self) -> None:
        job = self._jobs.get()
        if job is not None:
            job[0].cancel()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            self._run(*job)
            del job  # An idle thread must not keep the last call's arguments and result alive.

    def _next(self) -> _Job | None:
        if self._stay:
            return self._jobs.get()
        with self._lock:
            if not self._jobs.empty():
                return self._jobs.get()
            self._threads -= 1
            return None

    def _run(self, future: Future[Any], call: Callable[[], Any]) -> None:
        runs = future.set_running_or_notify_cancel()
        result, error = _called(call) if runs else (None, None)
        # Counted before anybody hears of the result, so that whoever calls again then finds this thread free.
        with self._lock:
            self._pending -= 1
        if error is not None:
            future.set_exception(error)
        elif runs:
            future.set_result(result)


def _called(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return call(), None
    except BaseException as error:
        return None, error


class ThreadPools:
    """The threads of one worker: `tasks` for bodies that are plain functions, `steps` for steps that are, `branches`
    for branches of groups."""

    def __init__(self, size: int) -> None:
        self.tasks = DaemonThreads(size, "flowfabric-task")
        self.steps = DaemonThreads(size, "flowfabric-step")
        self._size = size
        self._branches: dict[int, DaemonThreads] = {}

    def branches(self, depth: int) -> DaemonThreads:
        """The threads of branches that are within so many groups. A branch may wait for those of a group of its own, so
        each depth has threads of its own; and a race is none among fewer than a few."""
        if depth not in self._branches:
            self._branches[depth] = DaemonThreads(max(self._size, _FEWEST_BRANCHES), "flowfabric-branch", stay=False)
        return self._branches[depth]

    def close(self) -> None:
        """Ends the threads that are idle, and the others when their call returns."""
        self.tasks.shutdown()
        self.steps.shutdown()
        for branches in self._branches.values():
            branches.shutdown()
