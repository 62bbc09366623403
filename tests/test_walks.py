"""Test that the walk of a warm hello stays short, and that docs/architecture/walks.md is up to date."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import tidy_limits as limits
from tests.postgres_server import PostgresServer
from tools import walk

SOURCE = Path(__file__).parent.parent / "src" / "flowfabric"


@pytest.fixture(scope="module")
def hello(postgres: PostgresServer) -> walk.Walk:
    """Return the walk of a warm hello with one step."""
    return walk.take_walk("hello", postgres.dsn)


def test_a_warm_hello_enters_few_files_and_seldom_changes_file(hello: walk.Walk) -> None:
    assert hello.files > 10, "a recorder that sees nothing must not pass"
    assert hello.files <= limits.WALK_FILES
    assert hello.changes <= limits.WALK_CHANGES


def test_the_page_lists_the_files_that_hello_enters(hello: walk.Walk) -> None:
    section = _sections()["Submit to result"]
    assert _files(section) == set(hello.by_file()), "python tools/walk.py --write writes the page again"


@pytest.mark.parametrize("title", ["Submit to result", "An approval", "A lease expiry", "A CLI command"])
def test_the_page_names_only_files_that_exist(title: str) -> None:
    files = _files(_sections()[title])
    assert len(files) > 10
    assert [file for file in sorted(files) if not (SOURCE / file).is_file()] == []


def _sections() -> dict[str, str]:
    parts = re.split(r"^## (.+)$", walk.PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _files(section: str) -> set[str]:
    return set(re.findall(r"^\d+\. `([\w/]+\.py)`", section, flags=re.MULTILINE))
