"""Every example has a page, every line of code on a page is the program's, and every link leads somewhere."""

from __future__ import annotations

import re

import pytest

from tests.end_to_end.examples.pages import NAMES, PAGES, PROGRAMS, fences, snippet_problems

PROGRAM = "def f() -> int:\n    return 1\n\n\ndef g() -> int:\n    return 2\n"


def page_of(name: str) -> str:
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")


def test_every_example_has_a_page_and_a_line_in_the_list() -> None:
    assert sorted(path.stem for path in PAGES.glob("*.md")) == sorted([*NAMES, "index"])
    row = r"^\| `examples/(\w+)\.py` \| \[[^]]+\]\((\w+)\.md\)"
    listed = re.findall(row, page_of("index"), re.MULTILINE)
    assert sorted(listed) == [(name, name) for name in NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_the_lines_on_a_page_are_the_lines_of_the_program(name: str) -> None:
    program = (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")
    assert snippet_problems(page_of(name), program) == []
    assert len(fences(page_of(name), "text")) == 1, "a page says what its program prints"


def test_links_on_the_pages_lead_somewhere() -> None:
    for page in PAGES.glob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize(
    ("page", "is_good"),
    [
        ("```python\n    return 1\n```\n", True),
        ("```python\ndef g() -> int:\n    return 2\n```\n", True),
        ("```python\n    return 1\n```\n\n```python\n    return 3\n```\n", False),
        ("```python\nreturn 1\n    # so\n```\n", False),
        ("```python\ndef f() -> int:\n    return 2\n```\n", False),
        ("no lines at all\n", False),
    ],
)
def test_a_line_that_the_program_does_not_have_is_found(page: str, is_good: bool) -> None:
    assert (snippet_problems(page, PROGRAM) == []) is is_good
