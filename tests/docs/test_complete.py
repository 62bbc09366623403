"""Tests that all public names, error codes, events and limits are documented and that generated pages are current."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from flowfabric.core.executions.states import State
from flowfabric.core.executions.transitions import TRANSITIONS
from flowfabric.worker import worker
from tests.docs.pages import DOCS, ROOT, name
from tests.test_public_api import public_names
from tools import generate_reference
from tools.reference import errors, events, limits

REFERENCE = DOCS / "reference"


def _read(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", generate_reference.PAGES, ids=name)
def test_generated_page_is_current(page: Path) -> None:
    is_current = page.read_text(encoding="utf-8") == generate_reference.PAGES[page]()
    assert is_current, "run: python tools/generate_reference.py"


def test_every_public_name_is_documented() -> None:
    text = _read("reference/api.md") + _read("reference/engine-api.md")
    assert [word for word in public_names() if f'<a id="{word}"></a>' not in text] == []


def test_every_public_name_has_a_description() -> None:
    text = _read("reference/api.md") + _read("reference/engine-api.md")
    sections = re.split(r'^### <a id="([\w.]+)"></a>.*$', text, flags=re.MULTILINE)
    bodies = dict(zip(sections[1::2], sections[2::2], strict=True))
    sentences = {word: re.sub(r"```text.*?```", "", body, flags=re.DOTALL).strip() for word, body in bodies.items()}
    assert [word for word, sentence in sentences.items() if not sentence] == []
    assert "\n\n\n" not in text, "a method has no docstring"
    assert not re.search(r"\*\* *$", text, flags=re.MULTILINE), "a property has no docstring"


def test_every_error_code_is_documented() -> None:
    text = _read("reference/errors.md")
    assert [code for code in sorted(errors.codes()) if f'<a id="{code}"></a>' not in text] == []


def test_codes_in_tests_are_among_the_collected_codes() -> None:
    """The codes are collected from the source without running it, so all codes observed by tests must be among them."""
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    known = set(re.findall(r'\.code == "(\w+)"', tests))
    assert known - errors.codes() == {"syntax_error"}, "only `flowfabric check` has another list of codes"
    assert len(known) > 50


def test_every_code_on_a_page_exists() -> None:
    """A code that a page names but that does not exist was probably renamed."""
    mentioned = {
        (name(page), word)
        for page in DOCS.rglob("*.md")
        if page.parent != REFERENCE
        for word in re.findall(
            r"(?:refused with|rejected with|raises|fails with|code) `([a-z_]+)`", page.read_text(encoding="utf-8")
        )
    }
    known = errors.codes() | {"max_reclaims_exceeded", "never_awaited"}
    assert {(page, code) for page, code in mentioned if code not in known} == set()
    assert mentioned


def test_every_event_is_documented() -> None:
    text = _read("reference/events.md")
    assert [f"{family}.{word}" for family, word in events.names() if f"| `{family}.{word}` |" not in text] == []


def test_events_in_statements_are_among_the_collected_events() -> None:
    names = set()
    for path in (ROOT / "src").rglob("*.sql"):
        names |= set(
            re.findall(r"'(lease|lifecycle|completion|operator)', '(\w+)', ", path.read_text(encoding="utf-8"))
        )
    assert names and names <= set(events.names())


def test_every_limit_is_documented() -> None:
    assert limits.missing() == set()


def test_undocumented_limit_of_any_module_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # The dictionaries are replaced, because removing and restoring a key would change the order of the generated page.
    known = {module: names for module, names in limits._LIMITS.items() if module is not worker}
    others = {module: names for module, names in limits._NOT_LIMITS.items() if module != "core.retention"}
    monkeypatch.setattr(limits, "_LIMITS", known)
    monkeypatch.setattr(limits, "_NOT_LIMITS", others)
    retention = {
        f"flowfabric.core.retention.{name}" for name in ("MAX_PURGE_ROWS", "MAX_TRIMMED_EVENTS", "POSTPONE_FOR")
    }
    assert limits.missing() == {"flowfabric.worker.worker.MAX_SLOTS", *retention}


def test_diagram_has_every_state_and_transition() -> None:
    text = _read("reference/states.md")
    arrows = re.findall(r"^    (\S+) --> (\w+) :", text, flags=re.MULTILINE)
    assert set(State) <= {state for arrow in arrows for state in arrow}
    assert [transition.name for transition in TRANSITIONS if f"| `{transition.name}` |" not in text] == []


GUARANTEE_TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", _read("guarantees.md"))))


@pytest.mark.parametrize(("path", "test"), GUARANTEE_TESTS)
def test_test_named_by_a_guarantee_exists(path: str, test: str) -> None:
    assert _has_test(ROOT / path, test)


def test_every_guarantee_has_a_test() -> None:
    text = _read("guarantees.md")
    guarantees = set(re.findall(r"^(\d+)\. \*\*", text, flags=re.MULTILINE))
    tested = set(re.findall(r"^\| (\d+) \| `tests/", text, flags=re.MULTILINE))
    assert guarantees == tested and len(guarantees) == 10


def test_missing_test_is_found() -> None:
    assert not _has_test(ROOT / "tests" / "faults" / "test_kills.py", "test_that_is_gone")
    assert not _has_test(ROOT / "tests" / "faults" / "test_gone.py", "test_that_is_gone")


def _has_test(path: Path, test: str) -> bool:
    return path.exists() and any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == test
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )
