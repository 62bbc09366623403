"""CPU use as the system reports it: of this process, of a session of processes, and of a server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MEGABYTE = 1024 * 1024

Meter = Callable[[], float | None]


class _Process(NamedTuple):
    pid: int
    parent: int
    session: int
    own_s: float
    waited_s: float


class Stopwatch:
    """Wall time and CPU of this process since the stopwatch was created."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    @property
    def wall_s(self) -> float:
        return time.perf_counter() - self._wall

    @property
    def cpu_s(self) -> float:
        return time.process_time() - self._cpu


def session_cpu_s(session: int) -> float | None:
    """Return the CPU of all processes of a session, including exited ones that were waited for."""
    found = [process for process in _processes() if process.session == session]
    return sum(process.own_s + process.waited_s for process in found) if found else None


def server_cpu_s(parent: int) -> float | None:
    """Return the CPU of a server process and its children, or None if the system does not report it."""
    found = list(_processes())
    main = [process for process in found if process.pid == parent]
    if not main:
        return None
    children = sum(process.own_s for process in found if process.parent == parent)
    return main[0].own_s + main[0].waited_s + children


def parent_of(pid: int) -> int | None:
    """Return the parent of a process."""
    return next((process.parent for process in _processes() if process.pid == pid), None)


def resident_mb(pid: int) -> float | None:
    """Return the resident memory of a process in megabytes."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / _MEGABYTE


def _processes() -> Iterator[_Process]:
    if not Path("/proc").is_dir():
        return
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                text = (path / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            # The fields after the name: state, parent, group, session, …, four CPU times in ticks.
            parts = text.rpartition(")")[2].split()
            own, waited = (sum(map(int, parts[place : place + 2])) / _TICKS_PER_S for place in (11, 13))
            yield _Process(int(path.name), int(parts[1]), int(parts[3]), own, waited)
