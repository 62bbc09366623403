"""Tests of the documents that a run of the scoreboard writes, and that they are those of the published run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.rows import ROWS
from tests.faults.rows.row import BOTH, Tally
from tests.faults.scoreboard.__main__ import _heading
from tests.faults.scoreboard.publish import PAGE, README, README_ROWS, RUN, documents, publish
from tests.faults.scoreboard.results import ROOT, Board, Heading, Line, MeasurementResult, PlantedResult
from tests.faults.scoreboard.run_log import LoggedRun, RunKey, RunLog
from tests.faults.scoreboard.table import HEAD

HINT = "run: python -m tests.faults.scoreboard.publish"
HEADING = Heading("abc1234", "a fast one, 2 cores", "2026-11-18", [1, 2], 58.5)
TALLY = Tally(injected=1200, executions=2000, signals=500, events=500, recoveries_s=[1.0, 2.0, 6.0])
BOARD = Board(
    HEADING,
    [Line.of(row, backend, TALLY, 1000) for row in ROWS for backend in row.backends],
    [MeasurementResult("A function continues", backend, "p50 1.2 s") for backend in BOTH],
    [
        PlantedResult("no fence", "../unit/test_x.py::test_y", True, 4.2),
        PlantedResult("no lock", "test_z.py", False, 9),
    ],
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Copy the README to a temporary folder, and publish the board there."""
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / README, tmp_path)
    publish(BOARD, tmp_path)
    return tmp_path


def test_documents_are_those_of_the_published_run() -> None:
    published = documents(Board.from_json((ROOT / RUN).read_text(encoding="utf-8"))) if (ROOT / RUN).exists() else {}
    assert [path.name for path, text in published.items() if path.read_text(encoding="utf-8") != text] == [], HINT


def test_stored_run_equals_the_board(root: Path) -> None:
    assert Board.from_json((root / RUN).read_text(encoding="utf-8")) == BOARD


def test_page_has_a_heading_and_three_tables(root: Path) -> None:
    page = (root / PAGE).read_text(encoding="utf-8")
    assert "commit `abc1234` on 2026-11-18, a fast one, 2 cores, with seeds 1, 2, in 58.5 minutes" in page
    assert f"| {' | '.join(HEAD)} |" in page and page.count("| 1,200 (1,000) | 2,000 | 500 | 500 |") == len(BOARD.lines)
    assert "| 2.0 s / 6.0 s |" in page and "| 1.0e-03 |" in page
    assert "| A function continues | PostgreSQL | p50 1.2 s |" in page
    assert "1 of 2 were found." in page and "| no fence | `unit/test_x.py::test_y` | yes | 4.2 s |" in page


def test_readme_has_five_rows_and_keeps_the_rest(root: Path) -> None:
    before, after = (folder.joinpath(README).read_text(encoding="utf-8") for folder in (ROOT, root))
    begin, end = "dev.py faults --scoreboard`. Do not edit. -->", "<!-- End of the scoreboard. -->"
    assert before.partition(begin)[0] == after.partition(begin)[0]
    assert before.partition(end)[2] == after.partition(end)[2]
    part = after.partition(begin)[2].partition(end)[0]
    rows = [line for line in part.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == len(README_ROWS) == 5
    assert sum("| SQLite, PostgreSQL | 2,400 | 6,000 | 0 | 0 | 0 | 0 |" in row for row in rows) == 3


def test_rows_of_the_readme_exist() -> None:
    assert set(README_ROWS) <= {row.name for row in ROWS}


def test_publishing_again_replaces_the_last_run(root: Path) -> None:
    publish(replace(BOARD, heading=replace(HEADING, commit="def5678")), root)
    page, readme = ((root / file).read_text(encoding="utf-8") for file in (PAGE, README))
    assert "`def5678`" in page and "abc1234" not in page and readme.count("| fault | backends |") == 1


def test_heading_of_a_resumed_board_names_every_commit_and_date() -> None:
    runs = [
        LoggedRun(RunKey("a row", seed=seed), commit, date, 60.0, True, {})
        for seed, (commit, date) in enumerate([("aaa", "2026-11-17"), ("bbb", "2026-11-18"), ("aaa", "2026-11-17")])
    ]
    heading = _heading(RunLog(board=runs, resumed_s=120.0), {2, 1}, 60.0)
    assert (heading.commit, heading.date) == ("aaa, bbb", "2026-11-17, 2026-11-18")
    assert (heading.seeds, heading.minutes) == ([1, 2], 2.0)
    page = documents(replace(BOARD, heading=heading))[ROOT / PAGE]
    assert "Measured at commits `aaa`, `bbb` on 2026-11-17, 2026-11-18" in page


def test_readme_without_a_place_raises_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / README).write_text("# No place\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="one place"):
        publish(BOARD, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
