"""Tests for the benchmark bars and their verdicts."""

from __future__ import annotations

import pytest

from benchmarks.bars import BARS, POSTGRES, SQLITE, Verdict, least, most
from benchmarks.report import Report
from benchmarks.spread import Spread

RATE = least("rate", "jobs", 100, "jobs/s")
TIME = most("time", "start", 3, "ms")


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([100], Verdict.MET),
        ([99.9], Verdict.MISSED),
        ([95, 101, 102], Verdict.MET),
        ([95, 99, 102], Verdict.MISSED),
        ([50, 101, 200], Verdict.TOO_NOISY),
        ([150, 300, 600], Verdict.MET),
        ([10, 40, 90], Verdict.MISSED),
    ],
)
def test_verdict_follows_the_median_unless_the_rounds_are_noisy(values: list[float], verdict: Verdict) -> None:
    assert RATE.verdict(Spread.of(values)) is verdict


def test_time_bar_is_met_at_or_below_its_limit() -> None:
    assert TIME.verdict(Spread.of([3.0])) is Verdict.MET
    assert TIME.verdict(Spread.of([3.1])) is Verdict.MISSED


def test_all_sixteen_bars_exist_once_per_backend() -> None:
    assert {f"B{number}" for number in range(1, 17)} <= {bar.key.partition(".")[0] for bar in BARS}
    keys = [(bar.key, backend) for bar in BARS for backend in bar.backends]
    assert len(keys) == len(set(keys))


def test_report_lists_every_bar() -> None:
    report = Report()
    report.judge("B11", POSTGRES, Spread.of([2.0]))
    lines = report.tables().splitlines()
    for bar in BARS:
        assert any(line.startswith(f"{bar.key} ") and bar.text in line for line in lines), bar.key
    assert sum("not measured: not run" in line for line in lines) == len(report.judged) - 1


def test_report_shows_missed_bars_with_their_figure() -> None:
    report = Report()
    report.judge("B6", POSTGRES, Spread.of([399.0]))
    report.judge("B11", POSTGRES, Spread.of([2.0]))
    [missed] = [line for line in report.tables().splitlines() if line.startswith("B6 ")]
    assert missed.endswith("MISSED") and "399" in missed and "at least 400 chains/s" in missed
    [met] = [line for line in report.tables().splitlines() if line.startswith("B11 ")]
    assert met.endswith("met")
    assert report.missed == ["B6 on PostgreSQL"]


def test_verdict_of_a_quick_run_mentions_the_small_size() -> None:
    report = Report(is_small=True)
    report.judge("B6", POSTGRES, Spread.of([500.0]))
    [line] = [line for line in report.tables().splitlines() if line.startswith("B6 ")]
    assert line.endswith("met, at a small size")


def test_ratio_to_an_absent_peer_is_not_measured_with_a_reason() -> None:
    report = Report()
    report.leave_out("B1.DBOS", POSTGRES, "run with --peers")
    [line] = [line for line in report.tables().splitlines() if line.startswith("B1.DBOS")]
    assert line.endswith("not measured: run with --peers")
    assert report.missed == []


def test_noisy_figure_is_shown_as_a_range() -> None:
    report = Report()
    report.judge("B6", POSTGRES, Spread.of([200.0, 450.0, 900.0]))
    [line] = [line for line in report.tables().splitlines() if line.startswith("B6 ")]
    assert "200 to 900" in line and line.endswith("too noisy")


def test_judging_an_unknown_bar_raises_key_error() -> None:
    with pytest.raises(KeyError, match="no bar B99"):
        Report().judge("B99", POSTGRES, Spread.of([1.0]))
    with pytest.raises(KeyError, match="no bar B6 for SQLite"):
        Report().judge("B6", SQLITE, Spread.of([1.0]))
