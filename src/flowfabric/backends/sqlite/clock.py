"""The time of a store in a SQLite file.

    store time = the latest of   the wall clock of the host
                                 the newest time in the file
                                 the time since the host booted + the largest known offset

The file keeps the newest time that a writer used, and how far that time was ahead of the time since the host booted.
The last line matters while the wall clock is behind the newest time, for example after it jumped forward and back.
Store time then advances at the usual speed, and all processes on the file agree on it. Time never goes back.

The offset in the file counts only for the boot of the host in which it was written.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from flowfabric.store.rows import to_datetime, to_epoch_us

TestClock = Callable[[], datetime]
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_TIME_NAMESPACE = Path("/proc/self/ns/time")
_READ = "SELECT newest_at, boot_id, boot_offset_us FROM ff_clock"
_WRITE = "UPDATE ff_clock SET {link}newest_at = ?, boot_id = ?, boot_offset_us = ?"
_WRITE_NEWEST = "UPDATE ff_clock SET {link}newest_at = ?"
_LINK = "previous_at = newest_at, "


class StoreClock:
    """The clock of one store in this process. Every method may be called from any thread.

    A test clock replaces the clocks of the host. Its time counts unless the file has a later one.
    """

    def __init__(self, test_clock: TestClock | None = None) -> None:
        self._test_clock = test_clock
        self._boot_id = _read_boot_id()
        self._offset_us: int | None = None
        self._lock = threading.Lock()

    @property
    def is_test(self) -> bool:
        """True if a test clock replaces the clocks of the host."""
        return self._test_clock is not None

    def now(self) -> datetime:
        """Return the store's time, as far as this process knows it without reading the file."""
        if self._test_clock is not None:
            return self._test_clock()
        return self._advance(0, None)

    def read(self, source: sqlite3.Connection | sqlite3.Cursor) -> datetime:
        """Return the store's time. The transaction must have begun, so that no later time can be in the file."""
        newest_us, boot_id, offset_us = source.execute(_READ).fetchone()
        if self._test_clock is not None:
            newest_at: datetime = to_datetime(newest_us)
            return max(self._test_clock(), newest_at)
        is_known = boot_id == self._boot_id != ""
        return self._advance(newest_us, offset_us if is_known else None)

    def write(self, target: sqlite3.Connection | sqlite3.Cursor, now: datetime, *, is_only_write: bool = True) -> None:
        """Store `now`, which `read` returned in the same transaction, as the newest time in the file.

        With `is_only_write`, also link this transaction to the one before it; see `log_check.py`. A transaction that
        writes several times must not do this, because the link would point to itself.
        """
        link = _LINK if is_only_write else ""
        if self._test_clock is not None:
            target.execute(_WRITE_NEWEST.format(link=link), (to_epoch_us(now),))
        else:
            target.execute(_WRITE.format(link=link), (to_epoch_us(now), self._boot_id, self._offset_us))

    def _advance(self, newest_us: int, offset_us: int | None) -> datetime:
        """Return the time, and remember the largest offset to the time since the host booted."""
        # Read the wall clock first. If the process pauses between the two readings, the new offset is too small, which
        # does no harm. In the other order it would be too large, and the store's time would stay ahead.
        wall_us = time.time_ns() // 1000
        boot_us = _time_since_boot_us()
        offset = max(newest_us, wall_us) - boot_us
        if offset_us is not None and offset_us > offset:
            offset = offset_us
        with self._lock:
            if self._offset_us is None or self._offset_us < offset:
                self._offset_us = offset
            else:
                offset = self._offset_us
        now: datetime = to_datetime(boot_us + offset)
        return now


def _time_since_boot_us() -> int:
    """Return the time of a clock that never goes back, and that also counts the time while the host is suspended."""
    return (time.monotonic_ns() if _BOOTTIME is None else time.clock_gettime_ns(_BOOTTIME)) // 1000


def _read_boot_id() -> str:
    """Return an id of this boot of the host and of its clock, or an empty string if the system offers none."""
    if _BOOTTIME is None:
        return ""
    try:
        return f"{_BOOT_ID.read_text().strip()} {_TIME_NAMESPACE.readlink()}"
    except OSError:
        return ""
