"""Tests for the types of the SDK with two type checkers: correct programs, mistakes and inferred types."""

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
END_TO_END_PROGRAMS = ROOT / "tests" / "end_to_end" / "programs"
CORRECT = [HERE / "inferred_types.py", *sorted((HERE / "programs").glob("*.py"))]
# Without the second option mypy accepts a `match` that omits a case if nothing is returned.
MYPY = ("--strict", "--enable-error-code", "exhaustive-match", "--no-error-summary", "--config-file=")
PYRIGHT = {
    "typeCheckingMode": "standard", "reportMatchNotExhaustive": "error", "reportUnusedCoroutine": "error",
    "reportUnusedExpression": "none",
}  # fmt: skip

Checker = Callable[[Sequence[Path], Path], list[tuple[str, int, str]]]


def run_mypy(files: Sequence[Path], folder: Path) -> list[tuple[str, int, str]]:
    """Return the file, line and message of every error that mypy reports."""
    command: list[str | Path] = [TOOLS / "mypy", *MYPY, f"--cache-dir={folder / 'cache'}", *files]
    process = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert process.stderr == ""
    matches = [re.match(r"(.+?):(\d+): error: (.+)", line) for line in process.stdout.splitlines()]
    return [(Path(match[1]).name, int(match[2]), match[3]) for match in matches if match]


def run_pyright(files: Sequence[Path], folder: Path) -> list[tuple[str, int, str]]:
    """Return the file, line and message of every error that pyright reports. It reads only `folder`."""
    (folder / "pyrightconfig.json").write_text(json.dumps(PYRIGHT))
    command: list[str | Path] = [TOOLS / "pyright", "--outputjson", "--pythonpath", sys.executable, "--project", folder]
    process = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    report = json.loads(process.stdout)
    assert report["summary"]["filesAnalyzed"] == len(files)
    return [
        (Path(diagnostic["file"]).name, diagnostic["range"]["start"]["line"] + 1, diagnostic["message"])
        for diagnostic in report["generalDiagnostics"]
        if diagnostic["severity"] == "error"
    ]


@pytest.fixture(params=[run_mypy, run_pyright], ids=["mypy", "pyright"])
def checker(request: pytest.FixtureRequest) -> Checker:
    run_checker: Checker = request.param
    return run_checker


def test_checkers_report_exactly_the_marked_mistakes(checker: Checker, tmp_path: Path) -> None:
    """Check correct programs, which have the expected types, and marked mistakes in one run."""
    mistakes = tmp_path / "marked_mistakes.py"
    mistakes.write_text((HERE / "marked_mistakes.txt").read_text())
    marked = {number for number, line in enumerate(mistakes.read_text().splitlines(), 1) if "# wrong" in line}
    correct = [tmp_path / file.name for file in CORRECT]
    for file, copy in zip(CORRECT, correct, strict=True):
        copy.write_text(file.read_text())
    errors = checker([*correct, mistakes], tmp_path)
    assert [error for error in errors if error[0] != mistakes.name] == []
    assert [error for error in errors if error[1] not in marked] == []
    assert marked - {line for _, line, _ in errors} == set()


def test_end_to_end_programs_have_no_pyright_errors(tmp_path: Path) -> None:
    """Run only pyright here, because the mypy run of the project already checks all tests."""
    files = [file for file in END_TO_END_PROGRAMS.glob("*.py") if not file.name.startswith(("test_", "killed"))]
    folder = tmp_path / END_TO_END_PROGRAMS.relative_to(ROOT)
    folder.mkdir(parents=True)
    for file in files:
        (folder / file.name).write_text(file.read_text())
    assert run_pyright(files, tmp_path) == []
