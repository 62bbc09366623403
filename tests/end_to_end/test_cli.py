"""The commands: events and histories as lines, on every store, and errors in one line with a code."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pytest

from flowfabric.cli.main import main
from flowfabric.engine import Engine
from tests.scenarios import leased
from tests.stores import PostgresTestStore, TestStore, opened

ROOT = Path(__file__).parent.parent.parent


def words_for(store: TestStore, *words: str) -> list[str]:
    schema = ["--schema", store.schema] if isinstance(store, PostgresTestStore) else []
    return ["--url", store.url, *schema, *words]


class Terminal:
    """Runs commands, and reads what they print."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    async def run(self, *words: str) -> tuple[object, list[str], str]:
        """Exit code, lines and errors of a command, which has an event loop of its own."""
        code = await asyncio.to_thread(exit_code, words)
        out, error = self._capture.readouterr()
        return code, out.splitlines(), error


def exit_code(words: Sequence[str]) -> object:
    try:
        return main(words)
    except SystemExit as ended:
        return ended.code


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


async def finished(engine: Engine) -> str:
    lease = await leased(engine, tags={"team.owner": "ada"})
    await engine.leases.complete(lease.fence, b"out")
    return str(lease.execution_id)


async def test_events_are_lines_for_people_and_documents_for_programs(store: TestStore, terminal: Terminal) -> None:
    async with opened(store) as engine:
        id_ = await finished(engine)
        await engine.lanes.pause("default", "repairs\x1b[2J", principal="ada")
    code, lines, _ = await terminal.run(*words_for(store, "events"))
    assert (code, len(lines)) == (0, 3)
    assert "completion.completed" in lines[1] and id_ in lines[1]
    assert "by ada" in lines[2] and "\x1b" not in lines[2]
    code, lines, _ = await terminal.run(
        *words_for(store, "events", "--json", "--family", "completion", "--tag", "team.owner=ada")
    )
    [document] = map(json.loads, lines)
    assert (document["execution_id"], document["name"], document["tags"]) == (id_, "completed", {"team.owner": "ada"})
    code, lines, _ = await terminal.run(*words_for(store, "events", "--cursor", document["cursor"]))
    assert (code, len(lines)) == (0, 1)


async def test_follow_shows_what_happens_until_it_is_interrupted(store: TestStore) -> None:
    async with opened(store) as engine:
        words = words_for(store, "events", "--follow", "--from", "beginning")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "flowfabric", *words, stdout=subprocess.PIPE, cwd=ROOT,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        assert process.stdout is not None
        id_ = await finished(engine)
        lines = [(await asyncio.wait_for(process.stdout.readline(), 20)).decode() for _ in range(2)]
        assert [id_ in line for line in lines] == [True, True]
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 10) == 130


async def test_a_name_goes_on_where_it_was(store: TestStore, terminal: Terminal) -> None:
    async with opened(store) as engine:
        await finished(engine)
        for expected in (2, 0):
            code, lines, _ = await terminal.run(*words_for(store, "events", "--name", "audit", "--from", "beginning"))
            assert (code, len(lines)) == (0, expected)


async def test_history_tells_the_whole_life_and_where_it_stands(store: TestStore, terminal: Terminal) -> None:
    async with opened(store) as engine:
        id_ = await finished(engine)
    code, lines, _ = await terminal.run(*words_for(store, "history", id_))
    assert code == 0
    assert ["lease.acquired" in lines[0], "completion.completed" in lines[1]] == [True, True]
    assert lines[2].startswith("It has ended: completed")
    code, lines, _ = await terminal.run(*words_for(store, "history", id_, "--json"))
    assert [json.loads(line)["version"] for line in lines] == [1, 2]


async def test_errors_are_one_line_with_a_code(store: TestStore, terminal: Terminal) -> None:
    async with opened(store):
        pass
    for words, expected, said in (
        (["history", str(uuid4())], 3, "execution_not_found"),
        (["history", "x"], 2, "invalid_id"),
        (["events", "--cursor", "x"], 2, "cursor_invalid"),
        (["events", "--tag", "x"], 2, "invalid_tag_key"),
        (["nonsense"], 2, "invalid choice"),
    ):
        code, lines, error = await terminal.run(*words_for(store, *words))
        assert (code, lines) == (expected, []), words
        assert said in error and "Traceback" not in error


async def test_a_store_that_is_not_there_is_not_made(tmp_path: Path, terminal: Terminal) -> None:
    missing = tmp_path / "none.db"
    code, lines, error = await terminal.run("--url", str(missing), "events")
    assert (code, lines) == (1, [])
    assert error.startswith("flowfabric: schema_outdated: there is no store")
    assert not missing.exists()


async def test_the_address_may_come_from_the_environment(
    store: TestStore, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLOWFABRIC_URL", raising=False)
    code, _, error = await terminal.run("events")
    assert (code, "FLOWFABRIC_URL" in error) == (2, True)
    async with opened(store):
        pass
    monkeypatch.setenv("FLOWFABRIC_URL", store.url)
    words = words_for(store, "events")
    assert await terminal.run(*words[2:]) == (0, [], "")


def test_the_command_is_installed_under_its_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == {"flowfabric": "flowfabric.cli.main:main"}
