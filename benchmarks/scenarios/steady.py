"""Steady load: the rate must not fall, and the store must not grow once ended executions are purged."""

from __future__ import annotations

from benchmarks.bars import POSTGRES, SQLITE
from benchmarks.bench import SDK, Bench
from benchmarks.peers.protocol import Request
from benchmarks.scenarios.jobs import IN_FLIGHT
from benchmarks.spread import Spread

# The bar covers six windows of five minutes. It compares the last window with the second window: the rate, and the size
# of the store.
WINDOWS = 6
MINUTES = 30
_KEPT = 0.5
# SQLite has no bar here and runs for a shorter time.
_SHARE = {POSTGRES: 1.0, SQLITE: 0.125}
_MEGABYTE = 1024 * 1024


async def steady(bench: Bench) -> None:
    """Run full load in six windows and keep ended executions for half a window. The bar requires `--minutes 30`."""
    for backend, share in _SHARE.items():
        rates, sizes = await _windows(bench, backend, bench.plan.minutes * share)
        if backend == POSTGRES:
            judge_steady(bench, rates, sizes)


async def _windows(bench: Bench, backend: str, minutes: float) -> tuple[list[float], list[float]]:
    """Return the rate in each window and the size of the store at its end."""
    seconds = minutes * 60
    options = {"windows": WINDOWS, "retention_s": max(1.0, _KEPT * seconds / WINDOWS)}
    ours = bench.sdk(Request("steady", "", in_flight=IN_FLIGHT, options=options), backend)
    turns = await bench.in_turns([ours], seconds=seconds, rounds=1)
    [[answer]] = turns.answers.values()
    rates, sizes = answer.numbers["rates"], answer.numbers["sizes"]
    for place, (rate, size) in enumerate(zip(rates, sizes, strict=True), start=1):
        name = f"{SDK}, window {place} of {WINDOWS}"
        scenario = f"steady load, {minutes:g} minutes"
        bench.figure(scenario, backend, name, "jobs/s", rate)
        bench.figure(scenario, backend, name, "MB in the store", size / _MEGABYTE)
    return rates, sizes


def judge_steady(bench: Bench, rates: list[float], sizes: list[float]) -> None:
    """Judge the run against the bar, unless the run was shorter than the bar requires."""
    for key, values in (("B15.rate", rates), ("B15.size", sizes)):
        figure = Spread.of([values[-1] / values[1]])
        if bench.plan.minutes >= MINUTES:
            bench.report.judge(key, POSTGRES, figure)
        else:
            bench.report.leave_out(key, POSTGRES, f"{bench.plan.minutes:g} minutes only, --minutes {MINUTES}", figure)
