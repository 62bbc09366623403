"""Steady load: the rate must stay near that of a short run, and the store must not grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.bars import POSTGRES, SQLITE
from benchmarks.bench import SDK, Bench
from benchmarks.peers.protocol import Request
from benchmarks.scenarios.jobs import IN_FLIGHT, MANY_IN_FLIGHT
from benchmarks.spread import Spread

# The bars cover six windows of five minutes. The rate of the last window is compared with short runs before and after
# the load, and the size of the store with its size after the second window.
WINDOWS = 6
MINUTES = 30
_KEPT = 0.5
_IN_FLIGHT = {POSTGRES: MANY_IN_FLIGHT, SQLITE: IN_FLIGHT}
# SQLite has no bar here and runs for a shorter time.
_SHARE = {POSTGRES: 1.0, SQLITE: 0.125}
_MEGABYTE = 1024 * 1024
_UNITS = {
    "rates": "jobs/s",
    "sizes": "MB in the store",
    "client_us": "µs of client CPU per job",
    "server_us": "µs of server CPU per job",
    "dead_rows": "dead rows",
    "claim_pages": "pages per claimed row",
}

Windows = Mapping[str, Sequence[float | None]]


async def steady(bench: Bench) -> None:
    """Run full load in six windows, keep ended executions for half a window, and compare it with short runs. The bars
    require `--minutes 30`.
    """
    for backend, share in _SHARE.items():
        before = await _short_rates(bench, backend)
        windows = await _windows(bench, backend, bench.plan.minutes * share)
        rates = before.values + (await _short_rates(bench, backend)).values
        short = bench.figure("steady load", backend, f"{SDK}, short runs", "jobs/s", *rates)
        if backend == POSTGRES:
            judge_steady(bench, windows, short)


async def _short_rates(bench: Bench, backend: str) -> Spread:
    """Return the rates of short runs on empty stores, with as many jobs in flight as the load."""
    short = bench.sdk(Request("jobs", "", in_flight=bench.some(_IN_FLIGHT[backend])), backend)
    turns = await bench.in_turns([short], rounds=min(3, bench.plan.rounds))
    return Spread.of(answer.rate for answer in turns.answers[short])


async def _windows(bench: Bench, backend: str, minutes: float) -> Windows:
    """Return the figures of each window."""
    seconds = minutes * 60
    options = {
        "windows": WINDOWS,
        "retention_s": max(1.0, _KEPT * seconds / WINDOWS),
        "postmaster": bench.postmaster,
    }
    ours = bench.sdk(Request("steady", "", in_flight=bench.some(_IN_FLIGHT[backend]), options=options), backend)
    turns = await bench.in_turns([ours], seconds=seconds, rounds=1)
    [[answer]] = turns.answers.values()
    scenario = f"steady load, {minutes:g} minutes"
    for place in range(WINDOWS):
        for name, unit in _UNITS.items():
            value = answer.numbers[name][place]
            if value is not None:
                who = f"{SDK}, window {place + 1} of {WINDOWS}"
                bench.figure(scenario, backend, who, unit, value / _MEGABYTE if name == "sizes" else value)
    return answer.numbers


def judge_steady(bench: Bench, windows: Windows, short: Spread) -> None:
    """Judge the run against the bars, unless the run was shorter than the bars require."""
    rates, sizes = ([value for value in windows[name] if value is not None] for name in ("rates", "sizes"))
    for key, ratio in (("B15.short", rates[-1] / short.median), ("B15.size", sizes[-1] / sizes[1])):
        figure = Spread.of([ratio])
        if bench.plan.minutes >= MINUTES:
            bench.report.judge(key, POSTGRES, figure)
        else:
            bench.report.leave_out(key, POSTGRES, f"{bench.plan.minutes:g} minutes only, --minutes {MINUTES}", figure)
