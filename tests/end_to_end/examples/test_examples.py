"""Every example runs as a program, on both stores, and prints what its page says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flowfabric.sdk.checking import check_file
from tests.end_to_end.examples.pages import NAMES, PAGES, PROGRAMS, fences, masked

ENDS_WITHIN_S = 120
# What says most about a store: the others go to PostgreSQL at full size only.
ON_POSTGRES_ALWAYS = ("order_shop",)


def _sometimes(name: str) -> list[pytest.MarkDecorator]:
    return [] if name in ON_POSTGRES_ALWAYS else [pytest.mark.long]


def printed(name: str, folder: Path, *words: str) -> str:
    """What a program prints that works in this folder and has nothing to complain about."""
    surroundings = {key: value for key, value in os.environ.items() if not key.startswith("FLOWFABRIC_")}
    ended = subprocess.run(
        [sys.executable, PROGRAMS / f"{name}.py", *words], cwd=folder, capture_output=True, text=True, check=False,
        env=surroundings | {"TMPDIR": str(folder)}, timeout=ENDS_WITHIN_S,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


@pytest.mark.parametrize("name", NAMES)
def test_an_example_prints_what_its_page_says_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    assert masked(printed(name, tmp_path)) == masked(told(name))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [pytest.param(name, marks=_sometimes(name)) for name in NAMES])
def test_it_prints_the_same_on_postgresql(name: str, database: str, tmp_path: Path) -> None:
    assert masked(printed(name, tmp_path, "--store", database)) == masked(told(name))


@pytest.mark.parametrize("path", sorted(PROGRAMS.rglob("*.py")), ids=lambda path: str(path.relative_to(PROGRAMS)))
def test_nothing_in_it_goes_wrong_when_it_runs_again(path: Path) -> None:
    assert check_file(path) == []


def told(name: str) -> str:
    [text] = fences((PAGES / f"{name}.md").read_text(encoding="utf-8"), "text")
    return text
