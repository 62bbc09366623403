"""Every example runs as a program on both backends and prints the output on its page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flowfabric.lint import check_file
from tests.end_to_end.examples.pages import NAMES, PAGES, PROGRAMS, fences, mask

TIMEOUT_S = 120
# This example uses the most features of the store. The other examples run on PostgreSQL only in long runs.
ON_POSTGRES_ALWAYS = ("order_shop",)


def _marks(name: str) -> list[pytest.MarkDecorator]:
    return [] if name in ON_POSTGRES_ALWAYS else [pytest.mark.long]


def run_example(name: str, folder: Path, *words: str) -> str:
    """Run an example in this folder, assert that it succeeds without errors, and return its output."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FLOWFABRIC_")}
    process = subprocess.run(
        [sys.executable, PROGRAMS / f"{name}.py", *words], cwd=folder, capture_output=True, text=True, check=False,
        env=environment | {"TMPDIR": str(folder)}, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert (process.returncode, process.stderr) == (0, "")
    return process.stdout


@pytest.mark.parametrize("name", NAMES)
def test_example_prints_the_output_on_its_page_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    assert mask(run_example(name, tmp_path)) == mask(read_expected_output(name))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [pytest.param(name, marks=_marks(name)) for name in NAMES])
def test_example_prints_the_same_on_postgresql(name: str, database: str, tmp_path: Path) -> None:
    assert mask(run_example(name, tmp_path, "--store", database)) == mask(read_expected_output(name))


@pytest.mark.parametrize("path", sorted(PROGRAMS.rglob("*.py")), ids=lambda path: str(path.relative_to(PROGRAMS)))
def test_check_finds_no_problem_in_an_example(path: Path) -> None:
    assert check_file(path) == []


def read_expected_output(name: str) -> str:
    [text] = fences((PAGES / f"{name}.md").read_text(encoding="utf-8"), "text")
    return text
