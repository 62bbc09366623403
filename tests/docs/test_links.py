"""Links between pages lead to files and headings that exist, and every page can be reached.

`docs/` is also built by itself into a site, so its links stay inside; what is elsewhere in the checkout is named by its
path.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, anchors, links, name, pages

# Headings with other letters, or with several hyphens side by side, are named in more than one way.
_SAME_EVERYWHERE = re.compile(r"[a-z0-9_]+(-[a-z0-9_]+)*")


@pytest.mark.parametrize("page", pages(), ids=name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert [target for target in links(page) if not _is_there(page, target)] == []


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=name)
def test_the_links_of_a_site_stay_in_it(page: Path) -> None:
    assert [target for target in links(page) if not _is_in_site(page, target)] == []


@pytest.mark.parametrize(
    "target", ["../README.md", "guides", "/docs/concepts.md", "concepts.md#a---b", "<concepts.md>"]
)
def test_a_link_that_only_a_code_host_follows_is_found(target: str) -> None:
    assert not _is_in_site(DOCS / "index.md", target)


def test_every_page_can_be_reached_from_the_first_one() -> None:
    reached, todo = set[Path](), [DOCS / "index.md"]
    while todo:
        page = todo.pop()
        if page not in reached and page.suffix == ".md" and page.exists():
            reached.add(page)
            todo += [_target(page, link) for link in links(page)]
    assert [name(page) for page in DOCS.rglob("*.md") if page.resolve() not in reached] == []


@pytest.mark.parametrize("target", ["guides/vanished.md", "concepts.md#no-such-heading", "#no-such-heading"])
def test_a_link_that_leads_nowhere_is_found(target: str) -> None:
    assert not _is_there(DOCS / "index.md", target)


@pytest.mark.parametrize("target", ["concepts.md#the-words", "#guides", "reference/errors.md#payload_too_large"])
def test_a_link_to_a_heading_or_a_mark_is_followed(target: str) -> None:
    assert _is_there(DOCS / "index.md", target)


def _is_there(page: Path, target: str) -> bool:
    found, (_, _, anchor) = _target(page, target), target.partition("#")
    return found.exists() and (not anchor or anchor in anchors(found))


def _is_in_site(page: Path, target: str) -> bool:
    """True if site generators and code hosts take it for the same place."""
    found, (_, _, anchor) = _target(page, target), target.partition("#")
    return (
        found.is_file()
        and found.is_relative_to(DOCS)
        and (not anchor or _SAME_EVERYWHERE.fullmatch(anchor) is not None)
    )


def _target(page: Path, target: str) -> Path:
    path = target.partition("#")[0]
    return (page.parent / path).resolve() if path else page
