"""Rates, spreads and CPU, measured in turns so that a noisy neighbour hits both sides of a ratio."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
Side = Callable[[float], Awaitable[float]]


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ours over theirs, with the rates behind it: medians of the rounds, and the spread of the ratio."""

    ours: float
    theirs: float
    low: float
    high: float

    @property
    def value(self) -> float:
        return self.ours / self.theirs


async def in_turns(ours: Side, theirs: Side, seconds: float, rounds: int) -> Ratio:
    """Measures both sides in turns; each is given the seconds it may take and answers a rate."""
    pairs = [(await ours(seconds), await theirs(seconds)) for _ in range(rounds)]
    ratios = sorted(mine / other for mine, other in pairs)
    mine, other = (statistics.median(side) for side in zip(*pairs, strict=True))
    return Ratio(mine, other, ratios[0], ratios[-1])


class Stopwatch:
    """Wall time and CPU of this process since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    @property
    def wall_s(self) -> float:
        return time.perf_counter() - self._wall

    @property
    def cpu_s(self) -> float:
        return time.process_time() - self._cpu


def server_cpu_s(backend_pid: int) -> float | None:
    """CPU of all processes of the server that a backend belongs to; None where the system does not tell."""
    try:
        postmaster = _stat(backend_pid)[1]
        processes = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        return sum(_own_cpu_s(pid, postmaster) for pid in processes) + _gone_cpu_s(postmaster)
    except (OSError, ValueError):
        return None


def _own_cpu_s(pid: int, postmaster: int) -> float:
    try:
        fields = _stat(pid)
    except OSError:
        return 0.0
    return (fields[11] + fields[12]) / _TICKS_PER_S if fields[1] == postmaster else 0.0


def _gone_cpu_s(postmaster: int) -> float:
    fields = _stat(postmaster)
    return (fields[13] + fields[14]) / _TICKS_PER_S


def _stat(pid: int) -> list[int]:
    """The numbers of a process behind its name; the first is its state, as a letter's code."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    state, *rest = text.rpartition(")")[2].split()
    return [ord(state), *map(int, rest)]
