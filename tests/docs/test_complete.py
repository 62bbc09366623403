"""Nothing that users meet is undocumented: names, error codes, events, limits; and the pages are as the code is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from flowfabric.core.states import State
from flowfabric.core.transitions import TRANSITIONS
from flowfabric.worker import worker
from tests.docs.pages import DOCS, ROOT, name
from tests.test_public_api import public_names
from tools import generate_reference
from tools.reference import errors, events, limits

REFERENCE = DOCS / "reference"


def _read(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", generate_reference.PAGES, ids=name)
def test_a_written_page_is_as_it_would_be_written_now(page: Path) -> None:
    is_fresh = page.read_text(encoding="utf-8") == generate_reference.PAGES[page]()
    assert is_fresh, "run: python tools/generate_reference.py"


def test_every_public_name_is_documented() -> None:
    text = _read("reference/api.md") + _read("reference/engine-api.md")
    assert [word for word in public_names() if f'<a id="{word}"></a>' not in text] == []


def test_every_public_name_says_what_it_is() -> None:
    text = _read("reference/api.md") + _read("reference/engine-api.md")
    sections = re.split(r'^### <a id="([\w.]+)"></a>.*$', text, flags=re.MULTILINE)
    said = dict(zip(sections[1::2], sections[2::2], strict=True))
    sentences = {word: re.sub(r"```text.*?```", "", body, flags=re.DOTALL).strip() for word, body in said.items()}
    assert [word for word, sentence in sentences.items() if not sentence] == []
    assert "\n\n\n" not in text, "a method without a docstring leaves a hole"
    assert not re.search(r"\*\* *$", text, flags=re.MULTILINE), "so does a property"


def test_every_error_code_is_documented() -> None:
    text = _read("reference/errors.md")
    assert [code for code in sorted(errors.codes()) if f'<a id="{code}"></a>' not in text] == []


def test_the_codes_that_tests_know_are_among_those_that_were_found() -> None:
    """The codes are read from the sources without running them; what the tests have seen at run time must be there."""
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    known = set(re.findall(r'\.code == "(\w+)"', tests))
    assert known - errors.codes() == {"syntax_error"}, "only `flowfabric check` has another list of codes"
    assert len(known) > 50


def test_every_code_that_a_page_names_exists() -> None:
    """What a guide says that something is refused with, and is none, was renamed."""
    mentioned = {
        (name(page), word)
        for page in DOCS.rglob("*.md")
        if page.parent != REFERENCE
        for word in re.findall(r"(?:refused with|told|fails with|code) `([a-z_]+)`", page.read_text(encoding="utf-8"))
    }
    known = errors.codes() | {"max_reclaims_exceeded", "never_awaited"}
    assert {item for item in mentioned if item[1] not in known} == set()
    assert mentioned


def test_every_event_is_documented() -> None:
    text = _read("reference/events.md")
    assert [f"{family}.{word}" for family, word in events.names() if f"| `{family}.{word}` |" not in text] == []


def test_the_events_that_statements_write_are_among_those_that_were_found() -> None:
    found = set()
    for path in (ROOT / "src").rglob("*.sql"):
        found |= set(
            re.findall(r"'(lease|lifecycle|completion|operator)', '(\w+)', ", path.read_text(encoding="utf-8"))
        )
    assert found and found <= set(events.names())


def test_every_limit_is_documented() -> None:
    assert limits.missing() == set()


def test_a_limit_of_any_module_that_nobody_documented_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # Not taken out and put back, which would change the order of the page for whoever looks at it next.
    known = {module: names for module, names in limits._LIMITS.items() if module is not worker}
    others = {module: names for module, names in limits._NOT_LIMITS.items() if module != "core.purging"}
    monkeypatch.setattr(limits, "_LIMITS", known)
    monkeypatch.setattr(limits, "_NOT_LIMITS", others)
    assert limits.missing() == {"flowfabric.worker.worker.MOST_SLOTS", "flowfabric.core.purging.ROWS"}


def test_the_diagram_has_every_state_and_transition() -> None:
    text = _read("concepts.md")
    arrows = re.findall(r"^    (\S+) --> (\w+) :", text, flags=re.MULTILINE)
    assert set(State) <= {state for arrow in arrows for state in arrow}
    assert [item.name for item in TRANSITIONS if f"| `{item.name}` |" not in text] == []


PROMISED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", _read("guarantees.md"))))


@pytest.mark.parametrize(("path", "test"), PROMISED)
def test_a_test_that_a_guarantee_names_exists(path: str, test: str) -> None:
    assert _has_test(ROOT / path, test)


def test_every_promise_has_a_test() -> None:
    text = _read("guarantees.md")
    promised = set(re.findall(r"^(\d+)\. \*\*", text, flags=re.MULTILINE))
    shown = set(re.findall(r"^\| (\d+) \| `tests/", text, flags=re.MULTILINE))
    assert promised == shown and len(promised) == 10


def test_a_test_that_does_not_exist_is_found() -> None:
    assert not _has_test(ROOT / "tests" / "faults" / "test_kills.py", "test_that_is_gone")
    assert not _has_test(ROOT / "tests" / "faults" / "test_gone.py", "test_that_is_gone")


def _has_test(path: Path, test: str) -> bool:
    return path.exists() and any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == test
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )
