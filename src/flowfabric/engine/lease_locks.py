"""Reports which leases have their row locked by a transaction with user code.

While such a transaction is open, no other process can end the lease, and no renewal can extend it. So the local clock
of a worker must not end it either. The commit extends the lease. After a rollback, the local clock decides again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol
from uuid import UUID

# This clock also runs while the system sleeps, as the store's clock does. The monotonic clock of Linux stops.
# Windows has neither of these clocks, and its monotonic clock runs while the system sleeps.
_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
# Returns the local time in seconds by which a worker measures how long it has held a lease. Every durable call reads
# it, and a partial is faster than a function.
lease_time: Callable[[], float] = time.monotonic if _CLOCK is None else partial(time.clock_gettime, _CLOCK)


class LockListener(Protocol):
    """A receiver of reports, in any thread."""

    def lock_began(self, lease_id: UUID) -> None:
        """A transaction has locked the row of the lease, and has checked that the lease is valid."""

    def lock_ended(self, lease_id: UUID, extended_at: float | None) -> None:
        """The transaction has ended. If it has committed, it extended the lease from `extended_at` by local time."""


class LeaseLocks:
    """The listeners of one engine."""

    def __init__(self) -> None:
        self._listeners: tuple[LockListener, ...] = ()

    @contextmanager
    def report_to(self, listener: LockListener) -> Iterator[None]:
        """Report to the listener inside the block."""
        self._listeners = (*self._listeners, listener)
        try:
            yield
        finally:
            self._listeners = tuple(other for other in self._listeners if other is not listener)

    @contextmanager
    def watch(self, lease_id: UUID) -> Iterator[LeaseLock]:
        """Return the lock of one transaction. It commits if the block ends without an exception."""
        lock = LeaseLock(lease_id, self._listeners)
        try:
            yield lock
        except BaseException:
            lock.rolled_back()
            raise
        lock.committed()


class LeaseLock:
    """The lock of one transaction, which may be rolled back and run again after a conflict."""

    def __init__(self, lease_id: UUID, listeners: tuple[LockListener, ...]) -> None:
        self._lease_id = lease_id
        self._listeners = listeners
        self._is_locked = False
        self._extended_at: float | None = None

    def locked(self) -> None:
        """Report that the row is locked."""
        self._is_locked = True
        for listener in self._listeners:
            listener.lock_began(self._lease_id)

    def extending(self) -> None:
        """Note the local time before the transaction reads the time from which it extends the lease."""
        self._extended_at = lease_time()

    def rolled_back(self) -> None:
        """Report that the row is free and the lease unchanged."""
        self._end(None)

    def committed(self) -> None:
        """Report that the row is free and the lease extended."""
        self._end(self._extended_at)

    def _end(self, extended_at: float | None) -> None:
        if self._is_locked:
            self._is_locked = False
            for listener in self._listeners:
                listener.lock_ended(self._lease_id, extended_at)
