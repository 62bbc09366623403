"""Tests of the documentation site: its navigation is complete, and its check notices what is wrong with a build."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import DOCS, ROOT
from tools.check_site import problems

CONFIGURATION = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
GOOD = (
    '<html><link rel="icon" href="icon.png"><script src="search.js"></script><a href="https://a.example">a</a></html>'
)
SEARCH = '{"items": [{"location": "index.html"}, {"location": "guides/steps.html#a"}]}'


def test_every_page_is_in_the_navigation_once() -> None:
    assert sorted(entries(CONFIGURATION["nav"])) == sorted(
        page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")
    )


def entries(item: Any) -> Iterator[str]:
    """Yield the pages of a navigation, which nests lists and tables."""
    match item:
        case str():
            yield item
        case list():
            yield from (page for part in item for page in entries(part))
        case dict():
            yield from (page for part in item.values() for page in entries(part))


def test_site_has_no_fence_whose_script_is_on_another_host() -> None:
    assert "custom_fences" not in CONFIGURATION["markdown_extensions"]["pymdownx"]["superfences"]
    assert CONFIGURATION["theme"]["font"] is False


@pytest.fixture
def site(tmp_path: Path) -> tuple[Path, Path]:
    """Return a folder with two pages, and a folder with their good site."""
    docs, built = tmp_path / "docs", tmp_path / "site"
    for folder, ending, text in ((docs, "md", "# A page\n"), (built, "html", GOOD)):
        (folder / "guides").mkdir(parents=True)
        for name in ("index", "guides/steps"):
            (folder / f"{name}.{ending}").write_text(text, encoding="utf-8")
    (built / "search.json").write_text(SEARCH, encoding="utf-8")
    return docs, built


def test_good_site_has_no_problems(site: tuple[Path, Path]) -> None:
    assert problems(*site) == []


@pytest.mark.parametrize(
    "part",
    [
        '<script src="https://a.example/a.js"></script>',
        '<link rel="stylesheet" href="//a.example/a.css">',
        '<img alt="" src="http://a.example/a.png">',
    ],
)
def test_page_that_loads_from_another_host_is_found(site: tuple[Path, Path], part: str) -> None:
    (site[1] / "index.html").write_text(GOOD + part, encoding="utf-8")
    assert problems(*site) == ["index.html loads something from another host"]


def test_missing_page_is_found(site: tuple[Path, Path]) -> None:
    (site[1] / "guides" / "steps.html").unlink()
    assert problems(*site) == ["guides/steps.html is not built"]


@pytest.mark.parametrize("search", [None, '{"items": []}'])
def test_page_that_the_search_cannot_find_is_reported(site: tuple[Path, Path], search: str | None) -> None:
    (site[1] / "search.json").unlink()
    if search is not None:
        (site[1] / "search.json").write_text(search, encoding="utf-8")
    assert problems(*site) == ["guides/steps.html is not in the search", "index.html is not in the search"]
