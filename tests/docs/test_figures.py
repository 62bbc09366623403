"""The figures in the documents are those of the run that was published, and of no hand."""

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

AGAIN = "run: python -m benchmarks.publish"
PUBLISHED = documents(Report.read(RUN.read_text(encoding="utf-8")))
MOST_BYTES = 20_000


@pytest.mark.parametrize("page", PUBLISHED, ids=name)
def test_a_document_has_the_figures_of_the_run(page: Path) -> None:
    assert page.is_file() and page.read_text(encoding="utf-8") == PUBLISHED[page], AGAIN


def test_every_picture_is_one_of_the_run_and_is_shown() -> None:
    shown = {(page.parent / link).resolve() for page in (PAGE, COMPARISON) for link in links(page)}
    assert set(PICTURES.iterdir()) == {path for path in PUBLISHED if path.parent == PICTURES}, AGAIN
    assert [name(path) for path in PICTURES.iterdir() if path not in shown] == []


@pytest.mark.parametrize("picture", sorted(PICTURES.glob("*.svg")), ids=name)
def test_a_picture_is_small_and_can_be_read_in_the_dark(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    assert len(text) < MOST_BYTES and "prefers-color-scheme:dark" in text
    assert "viewBox" in ET.fromstring(text).attrib, "it shrinks with the page"


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The documents in another place."""
    for constant, path in {"RUN": RUN, "README": README, "PAGE": PAGE, "COMPARISON": COMPARISON}.items():
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
        monkeypatch.setattr(publish, constant, tmp_path / path.name)
    monkeypatch.setattr(publish, "PICTURES", tmp_path / "figures")
    return tmp_path


def test_another_run_takes_the_place_of_the_last_one(copied: Path) -> None:
    report = Report(notes={"command": "python3 dev.py bench --peers --publish", "machine": "a fast one"})
    ours, theirs = Spread.of([4242.0]), Spread.of([21.0])
    report.add(Series("races", POSTGRES, f"{OURS} SDK", "races/s", ours))
    report.add(Series("races", POSTGRES, "DBOS", "races/s", theirs, ratio=ours.over(theirs)))
    report.judge("B6", POSTGRES, Spread.of([399.0]))
    report.absent["Celery"] = "no Redis"
    (copied / "figures").mkdir()
    (copied / "figures" / "drawn-by-hand.svg").touch()
    before = README.read_text(encoding="utf-8").partition("<!-- What")[0]
    publish.publish(report)
    readme, comparison = ((copied / file).read_text(encoding="utf-8") for file in ("README.md", "comparison.md"))
    assert readme.startswith(before) and "| 399 | at least 400 chains/s | MISSED |" in readme and "## More" in readme
    assert "| races | PostgreSQL | DBOS | 21.0 | races/s | 202x |" in comparison and "Celery: no Redis" in comparison
    assert [path.name for path in (copied / "figures").iterdir()] == ["races-races-per-second.svg"]
    assert "(figures/races-races-per-second.svg)" in comparison


def test_a_document_without_a_place_for_figures_is_told(copied: Path) -> None:
    (copied / "README.md").write_text("# No place\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="one place"):
        documents(Report.read(RUN.read_text(encoding="utf-8")))


def test_a_run_of_some_scenarios_leaves_the_others_as_they_were(copied: Path) -> None:
    (copied / "figures").mkdir()
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
    found = Report.read((copied / RUN.name).read_text(encoding="utf-8"))
    assert [(item.scenario, item.figure.median) for item in found.series] == [("races", 1.0), ("chains", 3.0)]
    judged = {item.bar.key: item.figure.median for item in found.judged if item.figure}
    assert judged == {"B6": 401.0, "B11": 1.0}
    told = "Some of it was measured again by `python3 dev.py bench --only chains`."
    assert told in (copied / PAGE.name).read_text(encoding="utf-8")


def test_figures_of_two_machines_are_not_put_together(copied: Path) -> None:
    before = (copied / RUN.name).read_text(encoding="utf-8")
    part = Report(notes={"command": "python3 dev.py bench --only chains", "machine": "another one"})
    with pytest.raises(ValueError, match="two machines"):
        publish.publish(part, is_part=True)
    assert (copied / RUN.name).read_text(encoding="utf-8") == before
