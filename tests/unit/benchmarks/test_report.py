"""What a run found, as a table, as JSON and as plots; and what the run ends with."""

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
    """Ours and a peer, twice as slow."""
    report = Report()
    ours, theirs = Spread.of([100.0, 110.0, 105.0]), Spread.of([50.0, 55.0, 52.5])
    report.add(Series("jobs & more", POSTGRES, f"{OURS} SDK", "jobs/s", ours, 80.0, 61.5))
    report.add(Series("jobs & more", POSTGRES, "Peer", "jobs/s", theirs, 1_234.5, None, ours.over(theirs), 8.7))
    return report


def rows(report: Report, who: str) -> list[str]:
    return [line for line in report.tables().splitlines() if who in line]


def test_a_table_is_aligned_with_its_numbers_to_the_right() -> None:
    text = table(("who", "jobs/s"), [("us", "1,000"), ("them", "20")])
    assert text.splitlines() == ["who   jobs/s", "----  ------", "us     1,000", "them      20"]


@pytest.mark.parametrize(
    ("value", "text"), [(12_345.6, "12,346"), (123.4, "123"), (12.34, "12.3"), (1.234, "1.23"), (None, ""), (0, "0.00")]
)
def test_a_number_has_three_digits_that_count(value: float | None, text: str) -> None:
    assert number(value) == text


def test_a_row_has_the_median_the_spread_the_cpu_and_the_ratio(report: Report) -> None:
    [ours], [theirs] = rows(report, OURS), rows(report, "Peer")
    assert ours.endswith("61.5") and "105" in ours and "±5 %" in ours and "80.0" in ours
    assert theirs.split()[-2:] == ["2.00x", "8.70x"] and "1,234" in theirs


def test_a_ratio_that_is_too_noisy_is_not_printed() -> None:
    report = Report()
    report.add(Series("jobs", POSTGRES, "Peer", "jobs/s", Spread.of([1.0]), ratio=Spread.of([1.0, 2.0, 9.0])))
    [row] = rows(report, "Peer")
    assert row.endswith("too noisy")


def test_the_json_has_every_round_and_every_bar(report: Report) -> None:
    report.notes["machine"] = "a small one"
    found = json.loads(report.json())
    assert found["series"][1]["figure"]["values"] == [50.0, 55.0, 52.5]
    assert found["notes"] == {"machine": "a small one"}
    assert len(found["bars"]) == len(report.judged) and found["bars"][0]["verdict"] == "not measured"


def test_a_report_is_read_as_it_was_written(report: Report) -> None:
    report.judge("B6", POSTGRES, Spread.of([1.0, 2.0]))
    report.leave_out("B11", POSTGRES, "nobody is idle")
    report.absent["Celery"], report.broken["chains"], report.notes["machine"] = "no Redis", "KeyError", "a small one"
    again = Report.read(report.json())
    assert again.series == report.series and again.judged == report.judged
    assert (again.json(), again.tables()) == (report.json(), report.tables())


def test_a_bar_that_was_set_after_a_run_is_not_measured_by_it(report: Report) -> None:
    report.judge("B6", POSTGRES, Spread.of([500.0]))
    found = json.loads(report.json())
    found["bars"] = [{**item, "bar": "B0"} if item["bar"] == "B6" else item for item in found["bars"]]
    again = Report.read(json.dumps(found))
    assert "B0" not in {item.bar.key for item in again.judged}
    [line] = [line for line in again.tables().splitlines() if line.startswith("B6 ")]
    assert line.endswith("not measured: not run")


def test_a_plot_has_a_bar_for_each_contender_as_long_as_its_figure(report: Report, tmp_path: Path) -> None:
    [path] = report.write_plots(tmp_path / "plots")
    assert path.name == "jobs-more-jobs-per-second.svg"
    picture = ET.parse(path).getroot()
    ours, theirs = (float(bar.attrib["width"]) for bar in picture.iter(f"{SVG}rect"))
    assert theirs == pytest.approx(ours / 2, rel=0.01)
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert "jobs & more" in texts and "Peer, PostgreSQL" in texts and "105" in texts


def test_very_different_figures_are_drawn_on_a_logarithmic_scale_that_says_so() -> None:
    marks = [Mark(str(value), Spread.of([value]), ours=False) for value in (1.0, 100.0, 10_000.0)]
    text = svg("all", "jobs/s", marks)
    widths = [float(bar.attrib["width"]) for bar in ET.fromstring(text).iter(f"{SVG}rect")]
    assert widths[2] - widths[1] == pytest.approx(widths[1] - widths[0], abs=0.2)
    assert "logarithmic" in text


def test_a_missed_bar_fails_a_full_run_and_only_a_broken_scenario_a_quick_one(report: Report) -> None:
    full, quick = (argparse.Namespace(quick=value, json=None, plots=None, publish=False) for value in (False, True))
    assert (_tell(report, full), _tell(report, quick)) == (0, 0)
    report.judge("B6", POSTGRES, Spread.of([1.0]))
    assert (_tell(report, full), _tell(report, quick)) == (1, 0)
    report.broken["chains"] = "KeyError: 'm0'"
    assert (_tell(report, full), _tell(report, quick)) == (1, 1)
    assert "BROKEN: chains: KeyError: 'm0'" in report.tables()


def run_of(command: str, *scenarios: str, figure: float = 1.0) -> Report:
    report = Report(notes={"machine": "one", "command": command})
    for scenario in scenarios:
        report.add(Series(scenario, POSTGRES, OURS, "jobs/s", Spread.of([figure])))
    return report


def test_what_was_run_again_takes_the_place_of_what_was_there_and_names_the_commands_that_count() -> None:
    whole = run_of("bench", "jobs", "steps", "leases")
    once = whole.updated(run_of("bench --only jobs", "jobs", figure=2.0))
    twice = once.updated(run_of("bench --only leases", "leases", figure=3.0))
    found = twice.updated(run_of("bench --only jobs --only steps", "jobs", "steps", figure=4.0))
    assert {item.scenario: item.figure.median for item in found.series} == {"jobs": 4.0, "steps": 4.0, "leases": 3.0}
    assert found.notes[AGAIN] == "bench --only leases, bench --only jobs --only steps"
    assert found.notes["command"] == "bench"


def test_who_was_absent_and_what_was_broken_is_forgotten_when_it_was_there_again() -> None:
    whole = run_of("bench", "jobs")
    whole.broken |= {"jobs": "it broke", "idle": "it broke too"}
    whole.absent |= {f"{OURS} on {POSTGRES}": "away", f"Peer on {POSTGRES}": "away too"}
    found = whole.updated(run_of("bench --only jobs", "jobs"))
    assert (list(found.broken), list(found.absent)) == (["idle"], [f"Peer on {POSTGRES}"])


def test_figures_of_two_machines_are_not_put_together() -> None:
    other = Report(notes={"machine": "another", "command": "bench --only jobs"})
    with pytest.raises(ValueError, match="two machines"):
        run_of("bench", "jobs").updated(other)
