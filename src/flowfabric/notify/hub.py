"""The notifications of one engine.

    commit of this process ──► waiters of this process
                           └─► collected ──► announced (one NOTIFY for all commits within 10 ms)
    listener ◄── announcements of other processes ──► waiters of this process

While the listener is connected, waiters poll about every 10 seconds. Otherwise they poll about every second.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from uuid import UUID

from flowfabric.notify.listener import Listener, ListenerStatus
from flowfabric.notify.waiters import End, Topic, Waiter, WaiterRegistry
from flowfabric.store.commit_hints import CommitHints
from flowfabric.store.ports import Notifier

POLL_S = 1.0
POLL_WHILE_LISTENING_S = 10.0
# How often the ends of executions are polled in case a notification is lost. A caller waits one to two intervals.
_END_POLL_S = 0.125
_END_POLL_WHILE_LISTENING_S = 1.0
# Announcements are at least 10 ms apart, and 30 ms under load, when most workers are busy anyway.
_GAP_S = 0.01
_BUSY_GAP_S = 0.03
_BUSY_COMMITS = 50
_YIELDS = 3
_UNKNOWN_DUE_INTERVAL_S = 1.0
_FLUSH_TIMEOUT_S = 1.0
_MAX_ANNOUNCED = timedelta(seconds=POLL_WHILE_LISTENING_S + 1)
_MAX_REPLY_S = 5.0
_MAX_CLOCK_ERROR = timedelta(seconds=0.25)
_log = logging.getLogger("flowfabric.notify")


class NotifyHub:
    """The waiters, the announcer and the listener of one engine. The listener starts with the first waiter.

    `clock` returns the store's time, if this process can read it without a query.
    """

    def __init__(
        self, notifier: Notifier, *, enabled: bool = True, clock: Callable[[], datetime] | None = None
    ) -> None:
        self.waiters = WaiterRegistry()
        self.active_reconcilers = 0
        self.shortest_lease = timedelta.max
        self._enabled = enabled
        self._announcer = Announcer(notifier, POLL_WHILE_LISTENING_S, enabled=enabled)
        self._listener = Listener(notifier.source() if enabled else None, self._receive, self.learn_time)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_due: Callable[[datetime | None], None] | None = None
        # The store's time when the monotonic clock of this process was zero. The wall clock is not used: it may jump.
        self._zero_time: datetime | None = None
        self._clock = clock
        notifier.on_commit(self._on_commit)

    def waiter(self, topics: Collection[Topic], capabilities: Collection[str] = ()) -> Waiter:
        """Return a waiter for these topics; use it in a `with` block."""
        self._loop = asyncio.get_running_loop()
        self._listener.start()
        return Waiter(self.waiters, topics, capabilities)

    def expect_end(self, id_: UUID) -> End:
        """Return a future of the end of an execution, as `WaiterRegistry.expect_end` does."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._listener.start()
        return self.waiters.expect_end(id_, self._loop, _END_POLL_WHILE_LISTENING_S if self.is_alive else _END_POLL_S)

    @property
    def is_alive(self) -> bool:
        """True while notifications of other processes arrive, so that rare polling is enough."""
        return self._listener.is_alive

    @property
    def poll_interval_s(self) -> float:
        """How long a waiter waits before it polls, with jitter."""
        return random.uniform(0.8, 1.0) * (POLL_WHILE_LISTENING_S if self.is_alive else POLL_S)

    def status(self) -> ListenerStatus:
        """Return the status of the listener."""
        return self._listener.status(None if self._enabled else "off", self._announcer.announced)

    def on_due(self, callback: Callable[[datetime | None], None]) -> None:
        """Set the callback for new due times. It is called with None if the due time is not known."""
        self._on_due = callback

    def due_at(self, due: datetime | None) -> None:
        """Report a new due time to the callback and to other processes.

        `due` has the value None if the due time is stored but not known in this process.
        """
        if self._on_due is not None:
            self._on_due(due)
        now = self.store_now()
        if due is None:
            self._announcer.announce_unknown_due(now)
        else:
            self._announcer.announce_due(due, due - now)

    def note_lease_ttl(self, ttl: timedelta) -> None:
        """Remember the TTL of a granted lease if it is the shortest yet.

        Reconcilers poll at least twice within the shortest TTL. A process may die before it announces its lease, and
        the store's clock may jump.
        """
        if ttl < self.shortest_lease:
            self.shortest_lease = ttl
            if self._on_due is not None:
                # Wake the reconcilers, whose current sleep may be longer than this TTL.
                self._on_due(None)

    def learn_time(self, store_time: datetime, requested_at: float | None = None) -> None:
        """Learn from a time that the store read after the monotonic time `requested_at` and before now.

        The known time stays as it is if it agrees with this. So a slow reply does not move it, but a jump of the
        store's clock does. Without `requested_at`, the reply took at most a few seconds.
        """
        if self._clock is not None:
            return
        received_at = time.monotonic()
        latest = store_time - timedelta(seconds=received_at - _MAX_REPLY_S if requested_at is None else requested_at)
        known = self._zero_time
        self._zero_time = max(min(known or latest, latest), store_time - timedelta(seconds=received_at))
        if known is not None and abs(self._zero_time - known) > _MAX_CLOCK_ERROR and self._on_due is not None:
            # Wake the reconcilers, which chose the end of their sleep by the earlier time.
            self._on_due(None)

    def store_now(self) -> datetime:
        """Return the time of the store's clock, which is approximate if the clock is on a server."""
        if self._clock is not None:
            return self._clock()
        assert self._zero_time is not None, "an engine reads the time when it opens"
        return self._zero_time + timedelta(seconds=time.monotonic())

    async def close(self, timeout_s: float | None = None) -> None:
        """Stop listening, and send the remaining announcements within a second, or within `timeout_s`."""
        await self._listener.close()
        await self._announcer.close(_FLUSH_TIMEOUT_S if timeout_s is None else min(_FLUSH_TIMEOUT_S, timeout_s))

    def _on_commit(self, hints: CommitHints) -> None:
        if current_loop() is not None:
            self._notify_local(hints)
            self._announcer.publish(hints)
        elif self._loop is not None and self.waiters:
            # The commit was made in a writer thread, but only the thread of the event loop may notify waiters.
            _call_in(self._loop, self._notify_local, hints)

    def _receive(self, hints: CommitHints) -> None:
        """Notify the waiters of this process of a commit in another process."""
        is_beyond_horizon = hints.due is not None and hints.due - self.store_now() > _MAX_ANNOUNCED
        if is_beyond_horizon and self._on_due is not None:
            # Processes announce due times of the next seconds. So the store's clock has jumped, and the reconcilers
            # must read it.
            self._on_due(None)
        self._notify_local(hints)

    def _notify_local(self, hints: CommitHints) -> None:
        self.waiters.notify(hints)
        if self._on_due is not None and (hints.due is not None or hints.anything):
            self._on_due(hints.due)


class Announcer:
    """Announces hints to other processes.

    Hints that arrive during an announcement are merged into the next announcement.
    """

    def __init__(self, notifier: Notifier, horizon_s: float, *, enabled: bool) -> None:
        self._notifier = notifier
        self._enabled = enabled and notifier.can_announce
        self._pending = CommitHints()
        self._commits = 0
        self._task: asyncio.Task[None] | None = None
        self._due_times = KnownDueTimes(horizon_s)
        self._unknown_due_timer: asyncio.TimerHandle | None = None
        self._unknown_due_at: datetime | None = None
        self._unknown_due_announced_at = -_UNKNOWN_DUE_INTERVAL_S
        self.announced = 0

    def publish(self, hints: CommitHints) -> None:
        """Announce hints soon, if announcements are enabled and an event loop runs."""
        if not self._enabled or current_loop() is None:
            return
        self._pending.merge(hints)
        self._commits += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._announce(), name="flowfabric-announcer")

    def announce_due(self, due: datetime, remaining: timedelta) -> None:
        """Announce a due time if other processes might poll after it; `remaining` is the time until then."""
        if self._due_times.should_announce(remaining.total_seconds(), time.monotonic()):
            self.publish(CommitHints(due=due))

    def announce_unknown_due(self, now: datetime) -> None:
        """Make other processes read the due times, at most once a second.

        Most unknown due times are far in the future.
        """
        loop = current_loop()
        if loop is None or not self._enabled or self._unknown_due_timer is not None:
            return
        wait_s = max(0.0, self._unknown_due_announced_at + _UNKNOWN_DUE_INTERVAL_S - time.monotonic())
        self._unknown_due_at = now
        self._unknown_due_timer = loop.call_later(wait_s, self._announce_unknown_due_now)

    async def close(self, timeout_s: float = _FLUSH_TIMEOUT_S) -> None:
        """Send the remaining announcements within `timeout_s`."""
        if self._unknown_due_timer is not None:
            self._unknown_due_timer.cancel()
            self._announce_unknown_due_now()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=timeout_s)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _announce_unknown_due_now(self) -> None:
        self._unknown_due_timer, self._unknown_due_announced_at = None, time.monotonic()
        # This due time has passed already, which makes every reconciler read the due times.
        self.publish(CommitHints(due=self._unknown_due_at))

    async def _announce(self) -> None:
        for _ in range(_YIELDS):
            # Let the notified waiters of this process send their statements before the announcement.
            await asyncio.sleep(0)
        while self._pending:
            hints, self._pending = self._pending, CommitHints()
            busy, self._commits = self._commits + len(hints.ended) > _BUSY_COMMITS, 0
            try:
                await self._notifier.announce(hints)
                self.announced += 1
            except Exception as error:
                # This is only logged, because operations on the store raise an error if the store is broken.
                _log.debug("Announcement was lost: %s", error)
            await asyncio.sleep(_BUSY_GAP_S if busy else _GAP_S)


class KnownDueTimes:
    """Remembers the last announced due time."""

    def __init__(self, horizon_s: float) -> None:
        self._horizon_s = horizon_s
        self._announced: float | None = None

    def should_announce(self, in_s: float, now_s: float) -> bool:
        """Return True if a due time `in_s` seconds from now must be announced; `now_s` is a monotonic time."""
        if in_s > self._horizon_s:
            return False
        due = now_s + max(0.0, in_s)
        if self._announced is not None and now_s < self._announced <= due:
            return False
        self._announced = due
        return True


def current_loop() -> asyncio.AbstractEventLoop | None:
    """Return the running event loop of this thread, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _call_in(loop: asyncio.AbstractEventLoop, callback: Callable[[CommitHints], None], hints: CommitHints) -> None:
    try:
        loop.call_soon_threadsafe(callback, hints)
    except RuntimeError:
        return  # The loop is closed, so there are no waiters.
