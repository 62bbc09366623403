"""Every example has a page, code on the pages comes from the programs, and links have targets."""

from __future__ import annotations

import re

import pytest

from tests.end_to_end.examples.pages import NAMES, PAGES, PROGRAMS, fences, snippet_problems

PROGRAM = "def f() -> int:\n    return 1\n\n\ndef g() -> int:\n    return 2\n"


def read_page(name: str) -> str:
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")


def test_every_example_has_a_page_and_a_row_in_the_index() -> None:
    assert sorted(path.stem for path in PAGES.glob("*.md")) == sorted([*NAMES, "index"])
    row = r"^\| `examples/(\w+)\.py` \| \[[^]]+\]\((\w+)\.md\)"
    listed = re.findall(row, read_page("index"), re.MULTILINE)
    assert sorted(listed) == [(name, name) for name in NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_code_on_a_page_is_in_the_program(name: str) -> None:
    program = (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")
    assert snippet_problems(read_page(name), program) == []
    assert len(fences(read_page(name), "text")) == 1, "a page must have one block with the output of its program"


def test_links_on_the_pages_have_targets() -> None:
    for page in PAGES.glob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize(
    ("page", "is_good"),
    [
        ("```python\n    return 1\n```\n", True),
        ("```python\ndef g() -> int:\n    return 2\n```\n", True),
        ("```python\n    return 1\n```\n\n```python\n    return 3\n```\n", False),
        ("```python\nreturn 1\n    # comment\n```\n", False),
        ("```python\ndef f() -> int:\n    return 2\n```\n", False),
        ("no lines at all\n", False),
    ],
)
def test_code_that_is_not_in_the_program_is_detected(page: str, is_good: bool) -> None:
    assert (snippet_problems(page, PROGRAM) == []) is is_good
