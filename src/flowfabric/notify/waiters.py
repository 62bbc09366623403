"""Waiters: callers that wait for topics. They are notified of commits in this process and in other processes.

A waiter registers before its owner reads the store, so a commit between the read and the wait is not missed.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from contextvars import Context
from functools import partial
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from flowfabric.core.executions.views import StateSnapshot
from flowfabric.store.commit_hints import CommitHints

Topic = tuple[Any, ...]
_END_NOTIFY_DELAY_S = 0.1
_WORK_NOTIFY_DELAY_S = 0.05
_LONG_WAIT_S = 1.0
_WAKE_INTERVAL_S = 0.1
End = asyncio.Future[StateSnapshot | None]


class Waiter:
    """Waits until one of its topics is notified. The waiter is registered while its `with` block runs."""

    def __init__(self, registry: WaiterRegistry, topics: Collection[Topic], capabilities: Collection[str] = ()) -> None:
        self._registry = registry
        self.topics = tuple(topics)
        self.capabilities = tuple(capabilities)
        self.is_waiting = False
        self.snapshot: StateSnapshot | None = None
        self._is_notified = False
        self._future: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        self._registry.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._registry.remove(self)

    def notify(self, snapshot: StateSnapshot | None = None) -> None:
        """Wake the owner, now or at its next wait. `snapshot` is the final state of the execution, if known."""
        self.snapshot = snapshot or self.snapshot
        self._is_notified = True
        if self._future is not None:
            _wake(self._future)

    def clear(self) -> None:
        """Forget earlier notifications; call this before reading the store."""
        self._is_notified = False

    async def wait(self, seconds: float) -> bool:
        """Return True as soon as the waiter is notified, or False after `seconds`."""
        if not self._is_notified:
            future = self._future = asyncio.get_running_loop().create_future()
            stop_timer = self._registry.wake_later(future, seconds)
            self.is_waiting = True
            try:
                await future
            finally:
                self.is_waiting = False
                self._future = None
                stop_timer()
        is_notified, self._is_notified = self._is_notified, False
        return is_notified


class WaiterRegistry:
    """All waiters of one engine. The registry belongs to one event loop."""

    def __init__(self) -> None:
        self._by_topic: dict[Topic, set[Waiter]] = defaultdict(set)
        self._all: set[Waiter] = set()
        self._end_timer: asyncio.TimerHandle | None = None
        self._work_timer: asyncio.TimerHandle | None = None
        # The futures of long waits, each with the time at which it is woken. All of them share one timer.
        self._wake_at: dict[asyncio.Future[None], float] = {}
        self._wake_timer: asyncio.TimerHandle | None = None
        # The futures of callers that wait for an end, registered before and after the last poll.
        self._old_ends: dict[UUID, End] = {}
        self._new_ends: dict[UUID, End] = {}
        self._end_poll_timer: asyncio.TimerHandle | None = None
        self._end_poll_s = 0.0

    def __len__(self) -> int:
        return len(self._all) + len(self._old_ends) + len(self._new_ends)

    def expect_end(self, id_: UUID, loop: asyncio.AbstractEventLoop, poll_s: float) -> End:
        """Return a future of the end of an execution for which no other caller waits in this way.

        Its result is the final state of the execution, or None if the caller must read the state. The caller then
        expects the end again before it reads. Call `forget_end` if the future is no longer needed. All futures share
        one timer, which ends their wait after once or twice the latest `poll_s`.
        """
        end: End = loop.create_future()
        self._new_ends[id_] = end
        self._end_poll_s = poll_s
        if self._end_poll_timer is None:
            self._start_end_timer(loop)
        return end

    def forget_end(self, id_: UUID) -> None:
        """Remove the future of an end, if it has not been completed."""
        if self._new_ends.pop(id_, None) is None:
            self._old_ends.pop(id_, None)

    def _poll_ends(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the owners of all futures that have waited for a whole interval read the state of their execution."""
        late, self._old_ends, self._new_ends = self._old_ends, self._new_ends, {}
        _complete(late.values())
        self._end_poll_timer = None
        if self._old_ends:
            self._start_end_timer(loop)

    def _start_end_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        # Without a context of its own, the timer would keep that of the caller, such as a web request.
        self._end_poll_timer = loop.call_later(self._end_poll_s, self._poll_ends, loop, context=Context())

    def _poll_all_ends(self) -> None:
        ends = [*self._old_ends.values(), *self._new_ends.values()]
        self._old_ends, self._new_ends = {}, {}
        _complete(ends)

    def add(self, waiter: Waiter) -> None:
        """Register a waiter for its topics."""
        self._all.add(waiter)
        for topic in waiter.topics:
            self._by_topic[topic].add(waiter)

    def remove(self, waiter: Waiter) -> None:
        """Remove a waiter."""
        self._all.discard(waiter)
        for topic in waiter.topics:
            waiters = self._by_topic.get(topic)
            if waiters is not None:
                waiters.discard(waiter)
                if not waiters:
                    del self._by_topic[topic]

    def notify(self, hints: CommitHints) -> None:
        """Notify the waiters of all topics in the hints."""
        if hints.anything:
            self._notify_all(self._all)
            self._poll_all_ends()
            return
        if self._new_ends or self._old_ends:
            self._complete_ends(hints)
        if not self._all:
            return
        if hints.many_ended:
            self._notify_ends_soon()
        topics = (
            *map(lane_topic, hints.lanes),
            *map(events_topic, hints.namespaces),
            *map(lease_topic, hints.instances),
        )
        for topic in topics:
            self._notify_all(self._by_topic.get(topic, ()))
        for id_ in hints.ended:
            if waiters := self._by_topic.get(end_topic(id_)):
                self._notify_all(waiters, hints.completed.get(id_))

    def _complete_ends(self, hints: CommitHints) -> None:
        if hints.many_ended:
            self._notify_ends_soon()
        for id_ in hints.ended:
            end = self._new_ends.pop(id_, None) or self._old_ends.pop(id_, None)
            if end is not None and not end.done():
                end.set_result(hints.completed.get(id_))

    def wake_later(self, future: asyncio.Future[None], seconds: float) -> Callable[[], object]:
        """Complete the future after `seconds`, unless the returned function is called before.

        A long wait may take a little longer, because it shares a timer with other long waits.
        """
        loop = future.get_loop()
        if seconds < _LONG_WAIT_S:
            return loop.call_later(seconds, _wake, future).cancel
        self._wake_at[future] = loop.time() + seconds
        if self._wake_timer is None:
            self._wake_timer = loop.call_later(_WAKE_INTERVAL_S, self._wake_due)
        return partial(self._wake_at.pop, future, None)

    def _wake_due(self) -> None:
        self._wake_timer = None
        if self._wake_at:
            loop = next(iter(self._wake_at)).get_loop()
            self._wake_timer = loop.call_later(_WAKE_INTERVAL_S, self._wake_due)
            now = loop.time()
            for future in [future for future, at in self._wake_at.items() if at <= now]:
                _wake(future)

    def notify_workers(self) -> None:
        """Notify every waiter that waits for work on a lane."""
        self._notify_kind("lane")

    def notify_workers_soon(self) -> None:
        """Notify every waiter that waits for work, after a short delay.

        Further calls during the delay have no effect.
        """
        if self._work_timer is None:
            loop = asyncio.get_running_loop()
            self._work_timer = loop.call_later(_WORK_NOTIFY_DELAY_S, self._notify_workers_now)

    def waiting_lanes(self) -> tuple[set[tuple[str, str]], set[str]]:
        """Return the lanes that idle waiters wait for, and the capabilities of those waiters."""
        waiting = [waiter for waiter in self._all if waiter.is_waiting]
        lanes = {(topic[1], topic[2]) for waiter in waiting for topic in waiter.topics if topic[0] == "lane"}
        return lanes, {capability for waiter in waiting for capability in waiter.capabilities}

    def _notify_workers_now(self) -> None:
        self._work_timer = None
        self.notify_workers()

    def _notify_ends_soon(self) -> None:
        """Notify every caller that waits for the end of an execution, after a short delay.

        The hint does not name the executions that ended. Most callers wait for executions that have not ended, so a
        short delay does no harm.
        """
        if self._end_timer is None:
            loop = asyncio.get_running_loop()
            self._end_timer = loop.call_later(_END_NOTIFY_DELAY_S, self._notify_ends_now)

    def _notify_ends_now(self) -> None:
        self._end_timer = None
        self._notify_kind("end")
        self._poll_all_ends()

    def _notify_kind(self, kind: str) -> None:
        self._notify_all(waiter for topic, waiters in self._by_topic.items() if topic[0] == kind for waiter in waiters)

    def _notify_all(self, waiters: Iterable[Waiter], snapshot: StateSnapshot | None = None) -> None:
        for waiter in list(waiters):
            waiter.notify(snapshot)


def _complete(ends: Iterable[End]) -> None:
    for end in ends:
        if not end.done():
            end.set_result(None)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def lane_topic(lane: tuple[str, str]) -> Topic:
    """Return the topic for work on a lane; the lane is given as its namespace and name."""
    return ("lane", *lane)


def events_topic(namespace: str) -> Topic:
    """Return the topic for events of a namespace."""
    return ("events", namespace)


def lease_topic(instance: str) -> Topic:
    """Return the topic for leases of a worker instance that others ended or asked to stop."""
    return ("lease", instance)


def end_topic(id_: UUID) -> Topic:
    """Return the topic for the end of an execution."""
    return ("end", id_)
