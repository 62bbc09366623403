"""Tests of `dev.py faults --scoreboard`: exit codes, options, the log of results, and one real child process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from tests.faults.rows.row import Backend, Row, Tally, Trial
from tests.faults.scoreboard import run_log
from tests.faults.scoreboard.__main__ import main
from tests.faults.scoreboard.child import ChildFailed, run_child
from tests.faults.scoreboard.table import HEAD


async def _suite(trial: Trial) -> Tally:
    return Tally(injected=trial.faults)


ROWS = (
    Row("cut cables", "A cable is cut", _suite, minimum=10, short_minimum=2, lease_s=2.0),
    Row("lost disks", "A disk is lost", _suite, minimum=20, short_minimum=1, backends=("sqlite",)),
)


@dataclass
class Children:
    """Children that return prepared counts. `started` lists what ran."""

    tally: Tally = field(default_factory=lambda: Tally(injected=20, executions=300, recoveries_s=[1.0, 1.0, 3.0]))
    error: str = "interrupted"
    fails_at_seed: int | None = None
    started: list[tuple[str, str, int, int]] = field(default_factory=list)

    async def run(self, name: str, backend: Backend, faults: int, seed: int) -> run_log.Result:
        self.started.append((name, backend, faults, seed))
        if seed == self.fails_at_seed:
            raise ChildFailed(self.error)
        return asdict(self.tally)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a log in a temporary folder."""
    path = tmp_path / "folder" / "runs.jsonl"
    monkeypatch.setattr("tests.faults.scoreboard.__main__.LOG", path)
    return path


@pytest.fixture
def commit(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that changes the commit that is checked out."""

    def change(name: str) -> None:
        monkeypatch.setattr(run_log, "current_commit", lambda: name)

    return change


@pytest.mark.usefixtures("log")
def test_board_without_violations_passes_and_prints_every_column(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--short"], ROWS, Children().run) == 0
    printed = capsys.readouterr().out
    assert f"| {' | '.join(HEAD)} |" in printed
    recovery = "1.0 s / 3.0 s | 0.5 / 1.5 | 1.0e-02"
    assert f"| A cable is cut | PostgreSQL | 20 (2) | 300 | 0 | 0 | 0 | 0 | 0 | 0 | {recovery} |" in printed
    assert "0 problems" in printed


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(("options", "limit_s", "code"), [([], 2.5, 1), ([], 3.0, 0), (["--short"], 2.5, 0)])
def test_slow_recoveries_fail_a_full_run(options: list[str], limit_s: float, code: int) -> None:
    rows = [Row("cut cables", "A cable is cut", _suite, minimum=10, short_minimum=2, recovery_limit_s=limit_s)]
    assert main(["--row", "cables", *options], rows, Children().run) == code


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("kind", ["lost", "doubled", "wrong", "stuck"])
def test_violation_fails_the_board(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally(injected=20, executions=9)
    tally.add_violations([(kind, "it happened")])
    assert main(["--row", "disks"], ROWS, Children(tally).run) == 1
    assert f"FAILED lost disks, sqlite: {kind}: it happened" in capsys.readouterr().out


@pytest.mark.usefixtures("log")
def test_row_below_its_minimum_fails_the_board(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--row", "disks"], ROWS, Children(Tally(injected=19)).run) == 1
    assert "only 19 of at least 20 faults were injected" in capsys.readouterr().out


@pytest.mark.usefixtures("log")
def test_crashed_suite_fails_the_board(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--row", "disks"], ROWS, Children(error="no server", fails_at_seed=1).run) == 1
    assert "FAILED lost disks, sqlite: no server" in capsys.readouterr().out


def test_unknown_row_is_refused_with_the_known_rows(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--row", "fire"], ROWS, Children().run) == 2
    assert "Rows: cut cables, lost disks" in capsys.readouterr().err and not log.exists()


def test_missing_file_to_resume_from_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--resume", str(tmp_path / "gone")], ROWS, Children().run) == 2
    assert "no file" in capsys.readouterr().err


@pytest.mark.usefixtures("log")
def test_options_choose_rows_sizes_and_seeds() -> None:
    children = Children()
    assert main(["--row", "cables", "--seed", "7", "--short"], ROWS, children.run) == 0
    assert sorted(children.started) == [("cut cables", "postgres", 2, 7), ("cut cables", "sqlite", 2, 7)]


@pytest.mark.usefixtures("log")
def test_minutes_repeat_the_rows_with_further_seeds_until_one_fails() -> None:
    children = Children(fails_at_seed=3)
    assert main(["--row", "disks", "--minutes", "60"], ROWS, children.run) == 1
    assert [seed for _, _, _, seed in children.started] == [1, 2, 3]


def test_resume_runs_only_what_has_no_result_at_this_commit(log: Path, commit: Callable[[str], None]) -> None:
    commit("aaa")
    assert main(["--row", "disks", "--short"], ROWS, Children().run) == 0
    children = Children()
    assert main(["--short", "--resume"], ROWS, children.run) == 0
    assert [name for name, *_ in children.started] == ["cut cables"] * 2
    commit("bbb")
    assert main(["--row", "disks", "--short", "--resume"], ROWS, children.run) == 0
    assert children.started[-1][0] == "lost disks"
    assert [json.loads(line)["commit"] for line in log.read_text().splitlines()] == ["aaa"] * 3 + ["bbb"]


@pytest.mark.usefixtures("log")
def test_without_resume_every_row_runs() -> None:
    children = Children()
    assert [main(["--row", "disks"], ROWS, children.run) for _ in range(2)] == [0, 0]
    assert len(children.started) == 2


def test_resume_from_a_file_accepts_passed_results_of_other_commits(log: Path, commit: Callable[[str], None]) -> None:
    commit("aaa")
    assert main(["--row", "cables", "--short"], ROWS, Children().run) == 0
    assert main(["--row", "disks", "--short"], ROWS, Children(Tally(injected=1, lost=["one"])).run) == 1
    commit("bbb")
    children = Children()
    assert main(["--short", "--resume", str(log)], ROWS, children.run) == 0
    assert [name for name, *_ in children.started] == ["lost disks"], "it failed at the other commit"


@pytest.mark.usefixtures("log")
def test_resume_repeats_results_of_a_dirty_checkout(commit: Callable[[str], None]) -> None:
    commit("aaa-dirty")
    assert main(["--row", "disks"], ROWS, Children().run) == 0
    children = Children()
    assert main(["--row", "disks", "--resume"], ROWS, children.run) == 0
    assert len(children.started) == 1


@pytest.mark.usefixtures("log")
def test_resume_keeps_a_violation_of_this_commit(commit: Callable[[str], None]) -> None:
    commit("aaa")
    assert main(["--row", "disks"], ROWS, Children(Tally(injected=20, lost=["one"])).run) == 1
    assert main(["--row", "disks", "--resume"], ROWS, Children().run) == 1


@pytest.mark.usefixtures("log")
def test_resume_repeats_a_suite_that_crashed() -> None:
    assert main(["--row", "disks"], ROWS, Children(fails_at_seed=1).run) == 1
    assert main(["--row", "disks", "--resume"], ROWS, Children().run) == 0


async def test_child_process_returns_the_counts_of_a_row() -> None:
    counts = await run_child("reply of a satisfied suspend lost", "sqlite", 1, 1)
    assert Tally(**counts).violations == [] and counts["injected"] >= 1


async def test_crashed_child_process_raises_an_error_with_its_output() -> None:
    with pytest.raises(ChildFailed, match="KeyError: 'no such row'"):
        await run_child("no such row", "sqlite", 1, 1)
