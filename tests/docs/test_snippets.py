"""Tests that every Python block of every page runs unchanged and that every command on a page exists."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Collection, Iterator
from itertools import takewhile
from pathlib import Path

import pytest

import dev
from flowfabric.cli.parser import make_parser
from tests.docs import run_blocks
from tests.docs.follow import saved_as
from tests.docs.pages import DOCS, ROOT, fences, name, pages
from tests.docs.test_followed_pages import FOLLOWED
from tests.postgres_server import postgres_server

LANGUAGES = {"python", "console", "text", "mermaid", "json", "toml"}
OTHER_COMMANDS = {"bash", "cat", "curl", "echo", "export", "flask", "kill", "pip", "sleep", "source", "uvicorn"}
PYTHON_MODULES = {"django", "pytest", "venv"}
# What follows one of these words is another command, or a file.
SHELL_WORDS = {"&", ";", "&&", "|", ">", "2>", "<"}
WITH_PROGRAMS = [page for page in pages() if any(fence.language == "python" for fence in fences(page))]
# The pages of the examples show parts of programs. tests/end_to_end/examples runs the whole programs.
EXCERPTS = [page for page in WITH_PROGRAMS if page.parent == DOCS / "examples"]
PROGRAMS = [page for page in WITH_PROGRAMS if page not in EXCERPTS and page not in FOLLOWED]
# The server settings that an App requires.
DURABLE = {"fsync": "on", "full_page_writes": "on"}


@pytest.fixture(autouse=True)
def _restore_loggers() -> Iterator[None]:
    """Restore the loggers that a program of a page has configured."""
    loggers = [logging.getLogger(name) for name in ("flowfabric", "flowfabric.task")]
    before = [(list(logger.handlers), logger.level) for logger in loggers]
    yield
    for logger, (handlers, level) in zip(loggers, before, strict=True):
        logger.handlers[:] = handlers
        logger.setLevel(level)


@pytest.mark.parametrize("page", PROGRAMS, ids=name)
def test_programs_of_a_page_run_unchanged(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("FLOWFABRIC_STORE", "FLOWFABRIC_KEYS", "FLOWFABRIC_KEY_FILE"):
        monkeypatch.delenv(variable, raising=False)
    if "DATABASE_URL" in page.read_text(encoding="utf-8"):
        monkeypatch.setenv("DATABASE_URL", request.getfixturevalue("database"))
    assert run_blocks.run(page) > 0


@pytest.fixture
def database() -> Iterator[str]:
    """Return the URL of a separate, empty PostgreSQL server."""
    with postgres_server(**DURABLE) as server:
        yield server.dsn


GOOD = {
    "same output": "```python\nprint(1 + 1)\n```\n\n```text\n2\n```\n",
    "wildcard": "```python\nprint('a long line')\n```\n\n```text\na … line\n```\n",
    "text block not right after": "```python\nprint(1 + 1)\n```\n\nOf others:\n\n```text\n3\n```\n",
}
BAD = {
    "other output": "```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n",
    "a later block": "```python\nword = 1\n```\n\n```python\nassert word == 2\n```\n",
    "a test": "```python\nasync def test_it() -> None:\n    assert False\n```\n",
    "after an await": "```python\nimport asyncio\nawait asyncio.sleep(0)\nassert False\n```\n",
}


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_page_with_correct_output_passes(text: str, tmp_path: Path) -> None:
    run_blocks.run_blocks(ROOT / "docs" / "page.md", fences(_write_page(tmp_path, text)))


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_page_with_wrong_output_fails(text: str, tmp_path: Path) -> None:
    blocks = fences(_write_page(tmp_path, text))
    with pytest.raises(AssertionError):
        run_blocks.run_blocks(ROOT / "docs" / "page.md", blocks)


def test_excerpts_are_part_of_the_examples() -> None:
    programs = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "examples").rglob("*.py"))
    excerpts = [(name(page), fence) for page in EXCERPTS for fence in fences(page) if fence.language == "python"]
    assert [f"{page}:{fence.line}" for page, fence in excerpts if fence.text not in programs] == []


def test_every_block_has_a_known_language() -> None:
    languages = {(name(page), fence.language) for page in pages() for fence in fences(page)}
    assert {(page, language) for page, language in languages if language not in LANGUAGES} == set()


COMMANDS = {
    f"{name(page)}-{line.split('#')[0].strip()}": (page, line)
    for page in pages()
    for fence in fences(page)
    if fence.language == "console"
    for line in fence.text.splitlines()
    if line.strip()
}


@pytest.mark.parametrize(("page", "line"), COMMANDS.values(), ids=COMMANDS)
def test_command_on_a_page_exists(page: Path, line: str) -> None:
    saved = {saved_as(fence) for fence in fences(page)}
    assert _exists(_words(line), saved), line


@pytest.mark.parametrize(
    "line",
    [
        "flowfabric gone",
        "flowfabric --url a.db list",
        "flowfabric list --gone",
        "flowfabric history",
        "flowfabric lanes gone",
        "flowfabric submit",
        "python3 dev.py gone",
        "python3 gone.py",
        "rm -r x",
    ],
)
def test_missing_command_is_found(line: str) -> None:
    assert not _exists(_words(line), {"shop.py"})


def _words(line: str) -> list[str]:
    """Return the words of the first command of a line, also if its output is assigned to a variable."""
    line = re.sub(r"^\w+=\$\((.*)\)$", r"\1", line)
    return list(takewhile(lambda word: word not in SHELL_WORDS, shlex.split(line.replace(";", " ;"), comments=True)))


def _exists(argv: list[str], saved: Collection[str | None]) -> bool:
    match argv:
        case ["flowfabric" | "ff", *rest] | ["python3" | "python", "-m", "flowfabric", *rest]:
            return _is_parsed(rest)
        case ["python3" | "python", "dev.py", verb, *_]:
            return verb in dev.COMMANDS
        case ["python3" | "python", "-m", module, *_]:
            return module in PYTHON_MODULES
        case ["python3" | "python", str(script), *_]:
            return script in {*saved, "manage.py"} or (ROOT / script).exists()
        case [word, *_]:
            return word in OTHER_COMMANDS
    return False


def _is_parsed(argv: list[str]) -> bool:
    """Return True if the parser accepts these arguments."""
    try:
        make_parser().parse_args(argv)
    except SystemExit as exit_error:
        return exit_error.code in (0, None)
    return True


def _write_page(folder: Path, text: str) -> Path:
    path = folder / "page.md"
    path.write_text(text, encoding="utf-8")
    return path
