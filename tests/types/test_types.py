"""The types of the SDK, as two checkers see them: programs are right, mistakes are found, answers are inferred."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TOOLS = Path(sys.executable).parent
RUN = ROOT / "tests" / "end_to_end" / "programs"
RIGHT = [HERE / "answers.py", *sorted((HERE / "programs").glob("*.py"))]
# Without the second option mypy says nothing about a `match` that leaves a case out where nothing is returned.
MYPY = ("--strict", "--enable-error-code", "exhaustive-match", "--no-error-summary", "--config-file=")
PYRIGHT = {
    "typeCheckingMode": "standard", "reportMatchNotExhaustive": "error", "reportUnusedCoroutine": "error",
    "reportUnusedExpression": "none",
}  # fmt: skip

Checker = Callable[[Sequence[Path], Path], list[tuple[str, int, str]]]


def by_mypy(files: Sequence[Path], folder: Path) -> list[tuple[str, int, str]]:
    """What mypy reports: file, line and message."""
    command: list[str | Path] = [TOOLS / "mypy", *MYPY, f"--cache-dir={folder / 'cache'}", *files]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert found.stderr == ""
    matches = [re.match(r"(.+?):(\d+): error: (.+)", line) for line in found.stdout.splitlines()]
    return [(Path(match[1]).name, int(match[2]), match[3]) for match in matches if match]


def by_pyright(files: Sequence[Path], folder: Path) -> list[tuple[str, int, str]]:
    """What pyright reports: file, line and message. It looks at nothing outside of its folder."""
    (folder / "pyrightconfig.json").write_text(json.dumps(PYRIGHT))
    command: list[str | Path] = [TOOLS / "pyright", "--outputjson", "--pythonpath", sys.executable, "--project", folder]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    report = json.loads(found.stdout)
    assert report["summary"]["filesAnalyzed"] == len(files)
    return [
        (Path(item["file"]).name, item["range"]["start"]["line"] + 1, item["message"])
        for item in report["generalDiagnostics"]
        if item["severity"] == "error"
    ]


@pytest.fixture(params=[by_mypy, by_pyright], ids=["mypy", "pyright"])
def checker(request: pytest.FixtureRequest) -> Checker:
    found: Checker = request.param
    return found


def test_programs_are_right_and_answers_are_inferred(checker: Checker, tmp_path: Path) -> None:
    files = [tmp_path / file.name for file in RIGHT]
    for file, copy in zip(RIGHT, files, strict=True):
        copy.write_text(file.read_text())
    assert checker(files, tmp_path) == []


def test_the_programs_that_are_run_are_right_for_pyright_too(tmp_path: Path) -> None:
    """For mypy all tests are checked."""
    files = [file for file in RUN.glob("*.py") if not file.name.startswith(("test_", "killed"))]
    folder = tmp_path / RUN.relative_to(ROOT)
    folder.mkdir(parents=True)
    for file in files:
        (folder / file.name).write_text(file.read_text())
    assert by_pyright(files, tmp_path) == []


def test_every_marked_mistake_is_reported_and_nothing_else(checker: Checker, tmp_path: Path) -> None:
    mistakes = tmp_path / "marked_mistakes.py"
    mistakes.write_text((HERE / "marked_mistakes.txt").read_text())
    marked = {number for number, line in enumerate(mistakes.read_text().splitlines(), 1) if "# wrong" in line}
    reported = checker([mistakes], tmp_path)
    assert [item for item in reported if item[1] not in marked] == []
    assert marked - {line for _, line, _ in reported} == set()
