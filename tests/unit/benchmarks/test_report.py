"""Tests for benchmark reports: tables, JSON, plots and the exit code."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks.bars import POSTGRES
from benchmarks.plot import Mark, svg
from benchmarks.report import AGAIN, OURS, Report, Series
from benchmarks.run import _tell
from benchmarks.spread import Spread
from benchmarks.table import number, table

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def report() -> Report:
    """Return a report with FlowFabric and a peer that is half as fast."""
    report = Report()
    ours, theirs = Spread.of([100.0, 110.0, 105.0]), Spread.of([50.0, 55.0, 52.5])
    report.add(Series("jobs & more", POSTGRES, f"{OURS} SDK", "jobs/s", ours, 80.0, 61.5))
    report.add(Series("jobs & more", POSTGRES, "Peer", "jobs/s", theirs, 1_234.5, None, ours.over(theirs), 8.7))
    return report


def find_rows(report: Report, who: str) -> list[str]:
    return [line for line in report.tables().splitlines() if who in line]


def test_table_aligns_numbers_to_the_right() -> None:
    text = table(("who", "jobs/s"), [("us", "1,000"), ("them", "20")])
    assert text.splitlines() == ["who   jobs/s", "----  ------", "us     1,000", "them      20"]


@pytest.mark.parametrize(
    ("value", "text"), [(12_345.6, "12,346"), (123.4, "123"), (12.34, "12.3"), (1.234, "1.23"), (None, ""), (0, "0.00")]
)
def test_number_has_three_significant_digits(value: float | None, text: str) -> None:
    assert number(value) == text


def test_row_has_median_spread_cpu_and_ratio(report: Report) -> None:
    [ours], [theirs] = find_rows(report, OURS), find_rows(report, "Peer")
    assert ours.endswith("61.5") and "105" in ours and "±5 %" in ours and "80.0" in ours
    assert theirs.split()[-2:] == ["2.00x", "8.70x"] and "1,234" in theirs


def test_noisy_ratio_is_not_printed() -> None:
    report = Report()
    report.add(Series("jobs", POSTGRES, "Peer", "jobs/s", Spread.of([1.0]), ratio=Spread.of([1.0, 2.0, 9.0])))
    [row] = find_rows(report, "Peer")
    assert row.endswith("too noisy")


def test_json_has_every_round_and_every_bar(report: Report) -> None:
    report.notes["machine"] = "a small one"
    document = json.loads(report.json())
    assert document["series"][1]["figure"]["values"] == [50.0, 55.0, 52.5]
    assert document["notes"] == {"machine": "a small one"}
    assert len(document["bars"]) == len(report.judged) and document["bars"][0]["verdict"] == "not measured"


def test_report_survives_json(report: Report) -> None:
    report.judge("B6", POSTGRES, Spread.of([1.0, 2.0]))
    report.leave_out("B11", POSTGRES, "no idle worker")
    report.absent["Celery"], report.broken["chains"], report.notes["machine"] = "no Redis", "KeyError", "a small one"
    restored = Report.read(report.json())
    assert restored.series == report.series and restored.judged == report.judged
    assert (restored.json(), restored.tables()) == (report.json(), report.tables())


def test_bar_added_after_a_run_is_not_measured(report: Report) -> None:
    report.judge("B6", POSTGRES, Spread.of([500.0]))
    document = json.loads(report.json())
    document["bars"] = [{**bar, "bar": "B0"} if bar["bar"] == "B6" else bar for bar in document["bars"]]
    restored = Report.read(json.dumps(document))
    assert "B0" not in {judged.bar.key for judged in restored.judged}
    [line] = [line for line in restored.tables().splitlines() if line.startswith("B6 ")]
    assert line.endswith("not measured: not run")


def test_plot_has_one_proportional_bar_per_contender(report: Report, tmp_path: Path) -> None:
    [path] = report.write_plots(tmp_path / "plots")
    assert path.name == "jobs-more-jobs-per-second.svg"
    picture = ET.parse(path).getroot()
    ours, theirs = (float(bar.attrib["width"]) for bar in picture.iter(f"{SVG}rect"))
    assert theirs == pytest.approx(ours / 2, rel=0.01)
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert "jobs & more" in texts and "Peer, PostgreSQL" in texts and "105" in texts


def test_plot_of_very_different_figures_has_a_labelled_log_scale() -> None:
    marks = [Mark(str(value), Spread.of([value]), ours=False) for value in (1.0, 100.0, 10_000.0)]
    text = svg("all", "jobs/s", marks)
    widths = [float(bar.attrib["width"]) for bar in ET.fromstring(text).iter(f"{SVG}rect")]
    assert widths[2] - widths[1] == pytest.approx(widths[1] - widths[0], abs=0.2)
    assert "logarithmic" in text


def test_missed_bar_fails_full_runs_and_broken_scenario_fails_all_runs(report: Report) -> None:
    full, quick = (argparse.Namespace(quick=value, json=None, plots=None, publish=False) for value in (False, True))
    assert (_tell(report, full), _tell(report, quick)) == (0, 0)
    report.judge("B6", POSTGRES, Spread.of([1.0]))
    assert (_tell(report, full), _tell(report, quick)) == (1, 0)
    report.broken["chains"] = "KeyError: 'm0'"
    assert (_tell(report, full), _tell(report, quick)) == (1, 1)
    assert "BROKEN: chains: KeyError: 'm0'" in report.tables()


def make_report(command: str, *scenarios: str, figure: float = 1.0) -> Report:
    report = Report(notes={"machine": "one", "command": command})
    for scenario in scenarios:
        report.add(Series(scenario, POSTGRES, OURS, "jobs/s", Spread.of([figure])))
    return report


def test_update_replaces_scenarios_and_lists_the_commands() -> None:
    whole = make_report("bench", "jobs", "steps", "leases")
    once = whole.updated(make_report("bench --only jobs", "jobs", figure=2.0))
    twice = once.updated(make_report("bench --only leases", "leases", figure=3.0))
    updated = twice.updated(make_report("bench --only jobs --only steps", "jobs", "steps", figure=4.0))
    assert {series.scenario: series.figure.median for series in updated.series} == {
        "jobs": 4.0,
        "steps": 4.0,
        "leases": 3.0,
    }
    assert updated.notes[AGAIN] == "bench --only leases, bench --only jobs --only steps"
    assert updated.notes["command"] == "bench"


def test_update_clears_absence_and_breakage_of_what_ran() -> None:
    whole = make_report("bench", "jobs")
    whole.broken |= {"jobs": "it broke", "idle": "it broke too"}
    whole.absent |= {f"{OURS} on {POSTGRES}": "away", f"Peer on {POSTGRES}": "away too"}
    updated = whole.updated(make_report("bench --only jobs", "jobs"))
    assert (list(updated.broken), list(updated.absent)) == (["idle"], [f"Peer on {POSTGRES}"])


def test_reports_of_two_machines_are_not_merged() -> None:
    other = Report(notes={"machine": "another", "command": "bench --only jobs"})
    with pytest.raises(ValueError, match="two machines"):
        make_report("bench", "jobs").updated(other)
