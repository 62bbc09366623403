"""Tests that links between pages lead to existing files and headings, and that every page can be reached.

`docs/` is also built as a separate site, so its pages link only to each other. They name other files by their path.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, anchors, links, name, pages

# Site generators disagree about the anchors of headings that contain other characters or several hyphens in a row.
_PORTABLE_ANCHOR = re.compile(r"[a-z0-9_]+(-[a-z0-9_]+)*")


@pytest.mark.parametrize("page", pages(), ids=name)
def test_links_of_a_page_have_existing_targets(page: Path) -> None:
    assert [target for target in links(page) if not _target_exists(page, target)] == []


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=name)
def test_links_of_the_site_stay_inside_it(page: Path) -> None:
    assert [target for target in links(page) if not _is_in_site(page, target)] == []


@pytest.mark.parametrize(
    "target", ["../README.md", "guides", "/docs/concepts.md", "concepts.md#a---b", "<concepts.md>"]
)
def test_link_that_only_a_code_host_follows_is_rejected(target: str) -> None:
    assert not _is_in_site(DOCS / "index.md", target)


def test_every_page_can_be_reached_from_the_index() -> None:
    reached, todo = set[Path](), [DOCS / "index.md"]
    while todo:
        page = todo.pop()
        if page not in reached and page.suffix == ".md" and page.exists():
            reached.add(page)
            todo += [_resolve_target(page, link) for link in links(page)]
    assert [name(page) for page in DOCS.rglob("*.md") if page.resolve() not in reached] == []


@pytest.mark.parametrize("target", ["guides/vanished.md", "concepts.md#no-such-heading", "#no-such-heading"])
def test_link_without_a_target_is_rejected(target: str) -> None:
    assert not _target_exists(DOCS / "index.md", target)


@pytest.mark.parametrize("target", ["concepts.md#terms", "#guides", "reference/errors.md#payload_too_large"])
def test_link_to_a_heading_or_anchor_is_accepted(target: str) -> None:
    assert _target_exists(DOCS / "index.md", target)


def _target_exists(page: Path, target: str) -> bool:
    file, (_, _, anchor) = _resolve_target(page, target), target.partition("#")
    return file.exists() and (not anchor or anchor in anchors(file))


def _is_in_site(page: Path, target: str) -> bool:
    """Return True if the target is in `docs/` and its anchor works with all site generators and code hosts."""
    file, (_, _, anchor) = _resolve_target(page, target), target.partition("#")
    return (
        file.is_file() and file.is_relative_to(DOCS) and (not anchor or _PORTABLE_ANCHOR.fullmatch(anchor) is not None)
    )


def _resolve_target(page: Path, target: str) -> Path:
    path = target.partition("#")[0]
    return (page.parent / path).resolve() if path else page
