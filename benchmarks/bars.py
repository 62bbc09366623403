"""Bars: the targets that the figures must reach. A bar is met, missed, too noisy to judge, or not measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from benchmarks.spread import Spread

POSTGRES = "PostgreSQL"
SQLITE = "SQLite"
BOTH = (POSTGRES, SQLITE)


class Verdict(Enum):
    """The judgement of a figure against its bar."""

    MET = "met"
    MISSED = "MISSED"
    TOO_NOISY = "too noisy"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Bar:
    """The target of one figure on each backend where it is measured."""

    key: str
    text: str
    limit: float
    unit: str = "x"
    aim: float | None = None
    most: bool = False
    # A counter does not depend on the machine, so a quick run can judge it.
    is_counter: bool = False
    backends: tuple[str, ...] = (POSTGRES,)

    @property
    def words(self) -> str:
        """The printed form of the bar."""
        return f"{'at most' if self.most else 'at least'} {self.limit:,g} {self.unit}"

    def holds(self, value: float) -> bool:
        """Return True if the value reaches the bar."""
        return value <= self.limit if self.most else value >= self.limit

    def verdict(self, figure: Spread) -> Verdict:
        """Judge the median. If the rounds differ widely and only some reach the bar, the figure is too noisy."""
        if figure.is_noisy and len({self.holds(value) for value in figure.values}) > 1:
            return Verdict.TOO_NOISY
        return Verdict.MET if self.holds(figure.median) else Verdict.MISSED


def least(
    key: str,
    text: str,
    limit: float,
    unit: str = "x",
    *,
    aim: float | None = None,
    backends: tuple[str, ...] = (POSTGRES,),
) -> Bar:
    """Return a bar that a figure must not fall below."""
    return Bar(key, text, limit, unit, aim, most=False, backends=backends)


def most(
    key: str,
    text: str,
    limit: float,
    unit: str = "x",
    *,
    aim: float | None = None,
    backends: tuple[str, ...] = (POSTGRES,),
) -> Bar:
    """Return a bar that a figure must not exceed."""
    return Bar(key, text, limit, unit, aim, most=True, backends=backends)


def counted(key: str, text: str, limit: float, unit: str, *, aim: float) -> Bar:
    """Return a bar that a counter must not exceed."""
    return replace(most(key, text, limit, unit, aim=aim), is_counter=True)


BARS = (
    least("B1.DBOS", "submit to result, 1,024 in flight, relative to DBOS", 100, aim=120),
    least("B1.Absurd", "submit to result, 1,024 in flight, relative to Absurd", 10, aim=12),
    least("B1.Procrastinate", "submit to result, 1,024 in flight, relative to Procrastinate", 16, aim=20),
    least("B1.PgQueuer", "submit to result, 1,024 in flight, relative to PgQueuer at batches of 100", 0.75, aim=1.0),
    most("B1.like", "queue: CPU of both sides per job of the engine, relative to PgQueuer", 0.85, aim=0.7),
    least("B2", "batches at the engine, relative to pgbench with the same statements", 0.65, aim=0.7),
    most("B3.client", "submit to result, CPU of the client per job", 150, "µs", aim=80),
    most("B3.server", "submit to result, CPU of the server per job", 120, "µs", aim=80),
    most("B3.statements", "submit to result, statements per job", 0.2, "statements"),
    most("B3.before.client", "submit to result, CPU of the client per job, relative to the checkout before", 0.6,
         aim=0.5),
    most("B3.before.server", "submit to result, CPU of the server per job, relative to the checkout before", 0.75,
         aim=0.6),
    counted("B3.wal.job", "WAL per plain job", 2_800, "bytes", aim=2_100),
    counted("B3.wal.step", "WAL per step", 400, "bytes", aim=300),
    counted("B3.wal.wait", "WAL per waiting task, suspended before its signal", 8_000, "bytes", aim=6_000),
    counted("B3.wal.member", "WAL per member of a chain", 5_800, "bytes", aim=4_500),
    counted("B3.trips.job", "statements in series, a job in process", 2, "statements", aim=2),
    counted("B3.trips.wait", "statements in series, signal to result", 6, "statements", aim=3),
    counted("B3.trips.member", "statements in series, a member of a chain", 5, "statements", aim=3),
    most("B4.in", "submit to start on an idle worker, in process, p50", 3, "ms", aim=1.5),
    most("B4.across", "submit to start on an idle worker of another process, p50", 6, "ms", aim=3),
    most("B4.in.commits", "submit to start, in process, p50, relative to one single-row commit", 4, aim=3),
    most("B4.across.commits", "submit to start, another process, p50, relative to one single-row commit", 9, aim=7),
    most("B4.p99", "submit to start on an idle worker of another process, p99", 20, "ms"),
    least("B4.peers.in", "submit to start, both in process: p50 of the best peer but Huey, relative to ours", 1.3),
    least("B4.peers.across", "submit to start, both across processes: p50 of the best peer, relative to ours", 1.0),
    most("B5.alone", "suspend, signal, resumed claim, one at a time, p50", 6, "ms"),
    most("B5.commits", "signal to result alone, p50, relative to one single-row commit", 12, aim=8),
    most("B5.before", "CPU per waiting task, 64 in flight, relative to the checkout before", 0.5, aim=0.35),
    least("B5.together", "suspend, signal, resumed claim, 64 in flight", 1_000, "round trips/s", aim=3_000),
    least("B6", "chains of ten members, 256 in flight", 400, "chains/s", aim=1_000),
    most("B6.before", "CPU per member of chains, relative to the checkout before", 0.6, aim=0.45),
    least("B7.sets", "work along ten capability sets, relative to one", 0.9, aim=1.0, backends=BOTH),
    least("B7.unroutable", "claims behind 10,000 that no worker can take, relative to none", 0.9, aim=1.0,
          backends=BOTH),
    most("B8.100", "any-of race, 100 losers cancelled, p99", 20, "ms", aim=10),
    most("B8.1000", "any-of race, 1,000 losers cancelled, p99", 200, "ms", aim=80),
    least("B9.rate", "durable steps, ten a task, 256 in flight", 15_000, "steps/s", aim=30_000),
    least("B9.DBOS", "durable steps, ten a task, relative to DBOS", 85, aim=110),
    most("B9.alone", "one step alone, relative to one single-row commit", 1.7, aim=1.4),
    most("B10.backlog", "claim p50 at the large backlog, relative to 1,000", 1.4, aim=1.2, backends=BOTH),
    most("B10.retained", "claim p50 with as many ended ones retained, relative to 1,000", 1.4, aim=1.2, backends=BOTH),
    most("B11", "16 idle workers together", 5, "statements/s", aim=2),
    least("B12.jobs", "submit to result, 256 in flight, synchronous=FULL", 3_000, "jobs/s", backends=(SQLITE,)),
    least("B12.DBOS", "submit to result, 256 in flight, relative to DBOS on SQLite", 30, aim=35, backends=(SQLITE,)),
    least("B12.steps", "durable steps, ten a task, 256 in flight", 5_000, "steps/s", backends=(SQLITE,)),
    least("B12.raw", "batches at the engine, relative to raw sqlite3 with the same statements", 0.6, aim=0.7,
          backends=(SQLITE,)),
    most("B12.before", "submit to result, CPU per job, relative to the checkout before", 0.8, backends=(SQLITE,)),
    least("B13.2", "two worker processes relative to one; 0.95 leaves room for chance", 0.95),
    least("B13.4", "four worker processes relative to one; 0.95 leaves room for chance", 0.95),
    most("B13.errors", "executions that failed or were lost with several worker processes", 0, "executions"),
    most("B14", "signals to one execution: the second half relative to the first", 1.3, backends=BOTH),
    least("B15.short", "steady load for 30 minutes: the last 5 relative to a short run with as many in flight", 0.8,
          aim=0.9),
    counted("B15.pages", "pages per claimed row after 200,000 jobs, relative to after 2,000", 1.6, "x", aim=1.2),
    most("B15.size", "steady load for 30 minutes: size of tables and indexes, the end relative to minute 10", 1.2),
    most("B16.idle", "memory of an idle worker", 110, "MB", aim=80),
    most("B16.idle", "memory of an idle worker", 90, "MB", aim=70, backends=(SQLITE,)),
    most("B16.executions", "memory gained by 100,000 executions", 20, "MB", backends=BOTH),
    most("B16.suspended", "memory gained by 10,000 suspended executions", 20, "MB", backends=BOTH),
    most("in flight", "complete of 200 with 10,000 leases in flight, relative to none", 1.4, backends=BOTH),
    most("timers", "lateness of a suspension's timeout, p99", 100, "ms", backends=BOTH),
    least("wake-ups", "16 clients with wake-ups, relative to without", 0.9),
    most("idle start", "submit to start on one of 16 idle workers, p50", 20, "ms"),
)  # fmt: skip
