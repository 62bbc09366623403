"""The architecture pages name existing files, have one diagram each, and start with a short overview."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, fences, links, name

FOLDER = DOCS / "architecture"
OVERVIEW = FOLDER / "overview.md"
DIAGRAMS = ("overview", "leases", "waits", "flows", "durable-functions", "backends", "events", "faults")
# All pages except walks.md, which is generated and therefore names only existing paths.
PAGES = sorted(page for page in FOLDER.glob("*.md") if page.name != "walks.md")
_PATH = re.compile(r"`((?:[\w-]+/)+[\w-]+\.py)(?::\w+)?`")


def test_overview_fits_on_two_screens() -> None:
    assert len(OVERVIEW.read_text(encoding="utf-8").splitlines()) <= 110


def test_overview_links_to_every_other_page() -> None:
    assert {page.name for page in FOLDER.glob("*.md")} - {"overview.md"} <= set(links(OVERVIEW))


@pytest.mark.parametrize("page", DIAGRAMS)
def test_page_has_exactly_one_diagram(page: str) -> None:
    assert [fence.language for fence in fences(FOLDER / f"{page}.md")] == ["text"]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_path_on_a_page_exists(page: Path) -> None:
    assert [path for path in _PATH.findall(_without_plans(page)) if not _exists(path)] == []


def test_every_fault_test_on_the_page_exists() -> None:
    text = (FOLDER / "faults.md").read_text(encoding="utf-8")
    mentioned = set(re.findall(r"`(test_\w+)`", text))
    assert mentioned
    assert mentioned - {path.stem for path in (ROOT / "tests" / "faults").glob("test_*.py")} == set()


def test_missing_path_is_found() -> None:
    assert not _exists("core/missing.py")
    assert not _exists("tests/docs/test_missing.py")


def _without_plans(page: Path) -> str:
    """Return the text of a page without the section about files of future features."""
    text = page.read_text(encoding="utf-8")
    return re.sub(r"^## Where new features go$.*?(?=^## )", "", text, flags=re.DOTALL | re.MULTILINE)


def _exists(path: str) -> bool:
    base = ROOT if path.startswith(("tests/", "tools/")) else ROOT / "src" / "flowfabric"
    return (base / path).is_file()
