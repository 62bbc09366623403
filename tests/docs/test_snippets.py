"""Every Python block of every page runs as it stands, and every command that a page shows exists."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import dev
from flowfabric.cli.parsing import make_parser
from tests.docs import running
from tests.docs.pages import DOCS, ROOT, fences, name, pages
from tests.postgres_server import postgres_server

LANGUAGES = {"python", "console", "text", "mermaid", "json", "toml"}
OWN_WORDS = {"pip", "bash"}
WITH_PROGRAMS = [page for page in pages() if any(fence.language == "python" for fence in fences(page))]
# What is shown of the examples are parts of programs that run by themselves.
EXCERPTS = [page for page in WITH_PROGRAMS if page.parent == DOCS / "examples"]
PROGRAMS = [page for page in WITH_PROGRAMS if page not in EXCERPTS]
# What an App accepts: a server that keeps what it acknowledges.
DURABLE = {"fsync": "on", "full_page_writes": "on"}


@pytest.mark.parametrize("page", PROGRAMS, ids=name)
def test_the_programs_of_a_page_run_as_they_stand(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("FLOWFABRIC_STORE", "FLOWFABRIC_KEYS", "FLOWFABRIC_KEY_FILE"):
        monkeypatch.delenv(variable, raising=False)
    if "DATABASE_URL" in page.read_text(encoding="utf-8"):
        monkeypatch.setenv("DATABASE_URL", request.getfixturevalue("database"))
    assert running.run(page) > 0


@pytest.fixture
def database() -> Iterator[str]:
    """The address of an empty PostgreSQL of its own."""
    with postgres_server(**DURABLE) as server:
        yield server.dsn


GOOD = {
    "the same": "```python\nprint(1 + 1)\n```\n\n```text\n2\n```\n",
    "anything between": "```python\nprint('a long line')\n```\n\n```text\na … line\n```\n",
    "not right after": "```python\nprint(1 + 1)\n```\n\nOf others:\n\n```text\n3\n```\n",
}
BAD = {
    "something else": "```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n",
    "a later block": "```python\nword = 1\n```\n\n```python\nassert word == 2\n```\n",
    "a test": "```python\nasync def test_it() -> None:\n    assert False\n```\n",
    "after an await": "```python\nimport asyncio\nawait asyncio.sleep(0)\nassert False\n```\n",
}


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_a_page_that_says_what_happens_passes(text: str, tmp_path: Path) -> None:
    running.run_blocks(ROOT / "docs" / "page.md", fences(_written(tmp_path, text)))


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_a_page_that_does_not_say_what_happens_is_found(text: str, tmp_path: Path) -> None:
    blocks = fences(_written(tmp_path, text))
    with pytest.raises(AssertionError):
        running.run_blocks(ROOT / "docs" / "page.md", blocks)


def test_what_is_shown_of_the_examples_stands_in_them() -> None:
    programs = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "examples").rglob("*.py"))
    shown = [(name(page), fence) for page in EXCERPTS for fence in fences(page) if fence.language == "python"]
    assert [f"{page}:{fence.line}" for page, fence in shown if fence.text not in programs] == []


def test_every_fence_names_a_language_that_is_looked_at() -> None:
    odd = {(name(page), fence.language) for page in pages() for fence in fences(page)}
    assert {(page, language) for page, language in odd if language not in LANGUAGES} == set()


COMMANDS = [
    pytest.param(line, id=f"{name(page)}-{line.split('#')[0].strip()}")
    for page in pages()
    for fence in fences(page)
    if fence.language == "console"
    for line in fence.text.splitlines()
    if line.strip()
]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_that_a_page_shows_exists(line: str) -> None:
    assert _exists(shlex.split(line, comments=True)), line


@pytest.mark.parametrize(
    "line",
    [
        "flowfabric gone", "flowfabric --url a.db list", "flowfabric list --gone", "flowfabric show",
        "flowfabric lanes gone", "flowfabric submit", "python3 dev.py gone", "python3 gone.py", "rm -r x",
    ],
)  # fmt: skip
def test_a_command_that_does_not_exist_is_found(line: str) -> None:
    assert not _exists(shlex.split(line))


def _exists(words: list[str]) -> bool:
    match words:
        case ["flowfabric" | "ff", *rest] | ["python3" | "python", "-m", "flowfabric", *rest]:
            return _is_understood(rest)
        case ["python3" | "python", "dev.py", verb, *_]:
            return verb in dev.COMMANDS
        case ["python3" | "python", str(script), *_]:
            return (ROOT / script).exists()
        case [word, *_]:
            return word in OWN_WORDS
    return False


def _is_understood(words: list[str]) -> bool:
    """True if the command takes these words, every option and argument of them."""
    try:
        make_parser().parse_args(words)
    except SystemExit as left:
        return left.code in (0, None)
    return True


def _written(folder: Path, text: str) -> Path:
    path = folder / "page.md"
    path.write_text(text, encoding="utf-8")
    return path
