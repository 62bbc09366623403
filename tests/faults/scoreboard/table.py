"""The main table of the scoreboard. The page, the terminal and the summary of the tests show the same table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.faults.scoreboard.results import Line

HEAD = (
    "fault", "backend", "injected (minimum)", "executions", "signals", "events", "lost", "doubled", "wrong", "stuck",
    "recovery p50 / p99", "in leases", "95 % bound",
)  # fmt: skip
BACKENDS = {"sqlite": "SQLite", "postgres": "PostgreSQL"}


def main_table(lines: Iterable[Line]) -> str:
    """Return the table with one line per fault and backend."""
    return markdown(HEAD, map(_cells, lines))


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def _cells(line: Line) -> list[str]:
    p50, p99, bound = line.recovery_p50_s, line.recovery_p99_s, line.bound
    has_times = p50 is not None and p99 is not None
    return [
        line.fault,
        BACKENDS[line.backend],
        f"{line.injected:,} ({line.minimum:,})",
        *(f"{count:,}" for count in (line.executions, line.signals, line.events)),
        *(f"{count:,}" for count in (line.lost, line.doubled, line.wrong, line.stuck)),
        f"{p50:.1f} s / {p99:.1f} s" if has_times else "",
        f"{(p50 or 0) / line.lease_s:.1f} / {(p99 or 0) / line.lease_s:.1f}" if has_times and line.lease_s else "",
        "" if bound is None else f"{bound:.1e}",
    ]
