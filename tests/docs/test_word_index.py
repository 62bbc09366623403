"""The word index of the architecture overview leads from ordinary words to files and names that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT

PACKAGE = ROOT / "src" / "flowfabric"
WORDS = (
    "shutdown",
    "executor",
    "notify",
    "serializer",
    "handler",
    "template",
    "validation",
    "optimistic",
    "cursor",
    "pagination",
    "compensation",
    "watchdog",
    "registry",
    "decorator",
    "config",
    "options",
    "hook",
    "output",
    "terminal",
    "waiter",
    "snapshot",
)


def _word_index() -> dict[str, list[str]]:
    """Return the targets of each word, such as `notify/hub.py` or `notify/hub.py:NotifyHub`."""
    overview = (DOCS / "architecture" / "overview.md").read_text(encoding="utf-8")
    _, _, section = overview.partition("\n## Word index\n")
    lines = re.findall(r"^- (\w+): (.+)$", section, flags=re.MULTILINE)
    return {word: re.findall(r"`([^`]+)`", targets) for word, targets in lines}


INDEX = _word_index()


def test_index_has_exactly_the_21_words() -> None:
    assert list(INDEX) == list(WORDS)


@pytest.mark.parametrize("word", WORDS)
def test_word_leads_to_existing_files_and_names(word: str) -> None:
    targets = INDEX[word]
    assert targets
    assert [target for target in targets if not _exists(target)] == []


@pytest.mark.parametrize("target", ["core/validation.py", "app/app.py:App", "core/executions/states.py:TERMINAL"])
def test_existing_target_is_accepted(target: str) -> None:
    assert _exists(target)


@pytest.mark.parametrize("target", ["core/missing.py", "core", "app/app.py:Missing", "app/app.py:__future__"])
def test_missing_target_is_rejected(target: str) -> None:
    assert not _exists(target)


def _exists(target: str) -> bool:
    path, _, name = target.partition(":")
    file = PACKAGE / path
    return file.is_file() and (not name or name in _defined_names(file))


def _defined_names(file: Path) -> set[str]:
    """Return the names that a module defines at its top level, without its imports."""
    names: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.Assign(targets=targets):
                names.update(target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return names
