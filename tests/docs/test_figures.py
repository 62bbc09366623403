"""Tests that the figures in the documents are those of the published benchmark run."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks import publish
from benchmarks.bars import POSTGRES
from benchmarks.publish import COMPARISON, PAGE, PICTURES, README, RUN, documents
from benchmarks.report import OURS, Report, Series
from benchmarks.spread import Spread
from tests.docs.pages import links, name

HINT = "run: python -m benchmarks.publish"
PUBLISHED = documents(Report.read(RUN.read_text(encoding="utf-8")))
MAX_BYTES = 20_000


@pytest.mark.parametrize("page", PUBLISHED, ids=name)
def test_document_has_the_figures_of_the_run(page: Path) -> None:
    assert page.is_file() and page.read_text(encoding="utf-8") == PUBLISHED[page], HINT


def test_every_picture_belongs_to_the_run_and_is_used() -> None:
    shown = {(page.parent / link).resolve() for page in (PAGE, COMPARISON) for link in links(page)}
    assert set(PICTURES.iterdir()) == {path for path in PUBLISHED if path.parent == PICTURES}, HINT
    assert [name(path) for path in PICTURES.iterdir() if path not in shown] == []


@pytest.mark.parametrize("picture", sorted(PICTURES.glob("*.svg")), ids=name)
def test_picture_is_small_and_supports_dark_mode(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    assert len(text) < MAX_BYTES and "prefers-color-scheme:dark" in text
    assert "viewBox" in ET.fromstring(text).attrib, "the picture must scale with the page"


@pytest.fixture
def documents_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the documents to a temporary folder."""
    for constant, path in {"RUN": RUN, "README": README, "PAGE": PAGE, "COMPARISON": COMPARISON}.items():
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
        monkeypatch.setattr(publish, constant, tmp_path / path.name)
    monkeypatch.setattr(publish, "PICTURES", tmp_path / "figures")
    return tmp_path


def test_publish_replaces_the_last_run(documents_copy: Path) -> None:
    report = Report(notes={"command": "python3 dev.py bench --peers --publish", "machine": "a fast one"})
    ours, theirs = Spread.of([4242.0]), Spread.of([21.0])
    report.add(Series("races", POSTGRES, f"{OURS} SDK", "races/s", ours))
    report.add(Series("races", POSTGRES, "DBOS", "races/s", theirs, ratio=ours.over(theirs)))
    report.judge("B6", POSTGRES, Spread.of([399.0]))
    report.absent["Celery"] = "no Redis"
    (documents_copy / "figures").mkdir()
    (documents_copy / "figures" / "drawn-by-hand.svg").touch()
    before = README.read_text(encoding="utf-8").partition("<!-- Generated")[0]
    publish.publish(report)
    readme, comparison = (
        (documents_copy / file).read_text(encoding="utf-8") for file in ("README.md", "comparison.md")
    )
    assert readme.startswith(before) and "| 399 | at least 400 chains/s | MISSED |" in readme and "## More" in readme
    assert "| races | PostgreSQL | DBOS | 21.0 | races/s | 202x |" in comparison and "Celery: no Redis" in comparison
    assert [path.name for path in (documents_copy / "figures").iterdir()] == ["races-races-per-second.svg"]
    assert "(figures/races-races-per-second.svg)" in comparison


def test_document_without_a_place_for_figures_raises(documents_copy: Path) -> None:
    (documents_copy / "README.md").write_text("# No place\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="one place"):
        documents(Report.read(RUN.read_text(encoding="utf-8")))


def test_partial_run_keeps_the_other_scenarios(documents_copy: Path) -> None:
    (documents_copy / "figures").mkdir()
    whole = Report(notes={"command": "python3 dev.py bench --publish", "machine": "a fast one"})
    whole.add(Series("races", POSTGRES, f"{OURS} SDK", "races/s", Spread.of([1.0])))
    whole.add(Series("chains", POSTGRES, f"{OURS} SDK", "chains/s", Spread.of([2.0])))
    whole.judge("B6", POSTGRES, Spread.of([399.0]))
    whole.judge("B11", POSTGRES, Spread.of([1.0]))
    publish.publish(whole)
    part = Report(notes={"command": "python3 dev.py bench --only chains", "machine": "a fast one"})
    part.add(Series("chains", POSTGRES, f"{OURS} SDK", "chains/s", Spread.of([3.0])))
    part.judge("B6", POSTGRES, Spread.of([401.0]))
    publish.publish(part, is_part=True)
    published = Report.read((documents_copy / RUN.name).read_text(encoding="utf-8"))
    assert [(series.scenario, series.figure.median) for series in published.series] == [("races", 1.0), ("chains", 3.0)]
    medians = {medians.bar.key: medians.figure.median for medians in published.judged if medians.figure}
    assert medians == {"B6": 401.0, "B11": 1.0}
    repeated = "Some scenarios were measured again by `python3 dev.py bench --only chains`."
    assert repeated in (documents_copy / PAGE.name).read_text(encoding="utf-8")


def test_runs_of_two_machines_are_not_merged(documents_copy: Path) -> None:
    before = (documents_copy / RUN.name).read_text(encoding="utf-8")
    part = Report(notes={"command": "python3 dev.py bench --only chains", "machine": "another one"})
    with pytest.raises(ValueError, match="two machines"):
        publish.publish(part, is_part=True)
    assert (documents_copy / RUN.name).read_text(encoding="utf-8") == before
