"""Run every fault suite, and publish the table of results.

usage: python3 dev.py faults --scoreboard [--row NAME] [--seed N] [--minutes N] [--short] [--resume [FILE]]

Each row runs in its own process, two at a time. With `--minutes`, the rows run again with further seeds until that
time is over. A run of all rows at full size writes docs/reliability.md, docs/reliability.json and a part of the README.
Every result is also appended to .scoreboard/runs.jsonl. With `--resume`, results in this file count if they were
measured at the current commit. With `--resume FILE`, passed results of other commits also count. The page names all
commits.
The command exits with 1 if a row found a violation or injected too few faults, or if a planted fault was not found.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.faults.rows import ROWS
from tests.faults.rows.row import Backend, Row, Tally
from tests.faults.rows.unpromised import MEASUREMENTS
from tests.faults.scoreboard.child import ChildFailed, run_child
from tests.faults.scoreboard.planted import find_planted_faults
from tests.faults.scoreboard.publish import publish
from tests.faults.scoreboard.results import (
    Board,
    Heading,
    Line,
    MeasurementResult,
    current_machine,
    quantile,
)
from tests.faults.scoreboard.run_log import LOG, Result, RunKey, RunLog
from tests.faults.scoreboard.table import main_table

PARALLEL = 2
RunChild = Callable[[str, Backend, int, int], Awaitable[Result]]


@dataclass
class RowRun:
    """The runs of one row on one backend, over all seeds."""

    row: Row
    backend: Backend
    faults: int
    run_child: RunChild
    tally: Tally = field(default_factory=Tally)
    errors: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    took_s: float = 0.0

    async def run(self, seed: int, log: RunLog) -> None:
        """Run the suite in a new process, or take its result from the log, and add its counts."""
        began, key = time.monotonic(), RunKey(self.row.name, self.backend, self.faults, seed)
        try:
            child = partial(self.run_child, self.row.name, self.backend, self.faults, seed)
            self.tally.add(Tally(**await log.result_of(key, child, self._has_passed)))
        except ChildFailed as error:
            self.errors.append(str(error))
        self.seeds.append(seed)
        self.took_s += time.monotonic() - began

    def _has_passed(self, counts: Result) -> bool:
        tally = Tally(**counts)
        return not tally.violations and tally.injected >= self.faults

    @property
    def minimum(self) -> int:
        """The number of faults that all runs together must inject."""
        return self.faults * len(self.seeds)

    def problems(self) -> list[str]:
        """Return one sentence for each reason why the row fails."""
        too_few = f"only {self.tally.injected} of at least {self.minimum} faults were injected"
        problems = [*self.tally.violations, *self.errors]
        problems += [too_few] if self.tally.injected < self.minimum else []
        p99_s, limit_s = quantile(self.tally.recoveries_s, 0.99), self.row.recovery_limit_s
        if self.faults >= self.row.minimum and limit_s is not None and (p99_s is None or p99_s > limit_s):
            problems.append(f"99 % of the recoveries took up to {p99_s} s, and the limit is {limit_s:g} s")
        return [f"{self.row.name}, {self.backend}: {problem}" for problem in problems]

    def line(self) -> Line:
        """Return the line of the table."""
        return Line.of(self.row, self.backend, self.tally, self.minimum)


def main(arguments: list[str], all_rows: Sequence[Row] = ROWS, run_child: RunChild = run_child) -> int:
    """Run the chosen rows, print and publish the board, and return the exit code."""
    options = _parser().parse_args(arguments)
    rows = [row for row in all_rows if options.row is None or options.row in row.name]
    if not rows:
        sys.stderr.write(f"No row has {options.row!r} in its name. Rows: {', '.join(row.name for row in all_rows)}\n")
        return 2
    if options.resume and not Path(options.resume).exists():
        sys.stderr.write(f"There is no file {options.resume} to resume from.\n")
        return 2
    began = time.monotonic()
    log = RunLog(Path(options.resume or LOG), resumes=options.resume is not None, any_commit=bool(options.resume))
    runs = [RowRun(row, backend, _faults(row, options), run_child) for row in rows for backend in row.backends]
    asyncio.run(_run_all(runs, options.seed, options.minutes, log))
    lines = [run.line() for run in runs]
    sys.stdout.write(f"\n{main_table(lines)}\n\n")
    problems = [problem for run in runs for problem in run.problems()]
    if options.row is None and not options.short:
        unpromised, failures = asyncio.run(_measure_unpromised(options.seed, log))
        planted = asyncio.run(find_planted_faults(PARALLEL, log))
        problems += failures
        problems += [f"the planted fault {fault.name!r} was not found" for fault in planted if not fault.is_found]
        heading = _heading(log, {seed for run in runs for seed in run.seeds}, time.monotonic() - began)
        publish(Board(heading, lines, unpromised, planted))
    for problem in problems:
        sys.stdout.write(f"FAILED {problem}\n")
    sys.stdout.write(f"{(time.monotonic() - began) / 60:.1f} minutes, {len(problems)} problems\n")
    return 1 if problems else 0


def _heading(log: RunLog, seeds: Iterable[int], took_s: float) -> Heading:
    """Return the heading of a board that ends now. It lists every commit and date of the results."""
    commits = ", ".join(dict.fromkeys(run.commit for run in log.board))
    dates = ", ".join(sorted({run.date for run in log.board}))
    minutes = (took_s + log.resumed_s / PARALLEL) / 60
    return Heading(commits, current_machine(), dates, sorted(seeds), round(minutes, 1))


def _faults(row: Row, options: argparse.Namespace) -> int:
    return row.short_minimum if options.short else row.minimum


async def _run_all(runs: list[RowRun], seed: int, minutes: float, log: RunLog) -> None:
    ends, free = time.monotonic() + 60 * minutes, asyncio.Semaphore(PARALLEL)

    async def run(row_run: RowRun) -> None:
        async with free:
            await row_run.run(seed, log)
        word = "FAILED" if row_run.problems() else "passed"
        names = f"{row_run.row.name}, {row_run.backend}"
        sys.stdout.write(f"{word:10} {row_run.took_s:6.1f} s  {names}: {row_run.tally.injected} faults\n")
        sys.stdout.flush()

    while True:
        # The rows that took longest start first, so that the last one does not run alone for long.
        await asyncio.gather(*[run(row_run) for row_run in sorted(runs, key=lambda each: -each.took_s)])
        seed += 1
        if time.monotonic() >= ends or any(row_run.problems() for row_run in runs):
            return


async def _measure_unpromised(seed: int, log: RunLog) -> tuple[list[MeasurementResult], list[str]]:
    """Return the measurements, and one sentence for each that failed."""
    results, problems = [], []
    for measurement in MEASUREMENTS:
        for backend in measurement.backends:
            name, size = measurement.name, measurement.size
            child = partial(run_child, name, backend, size, seed)
            try:
                measured = await log.result_of(RunKey(name, backend, size, seed), child, bool)
            except ChildFailed as error:
                problems.append(f"{name}, {backend}: {error}")
                continue
            results.append(MeasurementResult(name, backend, measured["summary"]))
            sys.stdout.write(f"measured   {name}, {backend}: {measured['summary']}\n")
            sys.stdout.flush()
    return results, problems


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 dev.py faults --scoreboard", description="Run every fault suite.")
    parser.add_argument("--row", help="run only the rows whose name contains this text, and publish nothing")
    parser.add_argument("--seed", type=int, default=1, help="the first seed (1)")
    parser.add_argument("--minutes", type=float, default=0.0, help="repeat the rows with further seeds for this long")
    resume = "take results of this commit from .scoreboard/runs.jsonl, or of any commit from this file"
    parser.add_argument("--resume", nargs="?", const="", metavar="FILE", help=resume)
    parser.add_argument("--short", action="store_true", help="inject as few faults as `dev.py test`, publish nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
