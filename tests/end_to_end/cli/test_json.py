"""With `--json` every verb prints documents, one a line, and nothing else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowfabric.engine import Engine
from tests.end_to_end.cli.shell import Said, Shell
from tests.end_to_end.cli.test_principals import FILE, OPERATED, Prepare, ended, flow, only, suspended, waiting, worker
from tests.end_to_end.cli.test_processes import SQLITE
from tests.end_to_end.cli.test_registry import every
from tests.stores import TestStore, opened

WRONG = "import time\nfrom flowfabric import App\napp = App()\n@app.task\nasync def nap() -> None:\n    time.sleep(1)\n"
SOURCE = "nap.py"


async def described(engine: Engine) -> list[str]:
    return (await flow(engine))[:1]


async def paused(engine: Engine) -> list[str]:
    await engine.lanes.pause("post")
    return []


async def signed(engine: Engine) -> list[str]:
    await suspended(engine)
    return []


async def registered(engine: Engine) -> list[str]:
    await worker(engine)
    return []


LOOKED: list[tuple[str, Prepare]] = [
    ("submit", only("mail", "{}")), ("submit", only("mail", "--wait", "--timeout", "1ms")), ("list", paused),
    ("show", ended), ("show", waiting), ("history", ended), ("explain", waiting), ("events", paused), ("lanes", paused),
    ("lanes list", paused), ("flows", paused), ("flows", described), ("waitpoints", signed), ("waitpoints", suspended),
    ("keys", signed), ("keys list", signed), ("workers", registered), ("workers list", registered), ("stats", paused),
    ("doctor", paused), ("migrate", paused), ("migrate", only("--check")), ("check", only(SOURCE)),
    ("bench", only("-n", "3")), ("completion", only("bash")),
]  # fmt: skip
# A worker works until it is told to end: see test_processes.py.
APART = {"worker"}


def test_no_verb_is_left_out() -> None:
    assert {path for path, _ in LOOKED + OPERATED} | APART == {" ".join(path) for path, _ in every()}


@SQLITE
async def test_every_verb_prints_documents(
    store: TestStore, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    async for path, words in calls(store):
        assert_documents(path, await shell.run(*words, "--json"))


def write_files(folder: Path) -> None:
    """What some of the calls read."""
    (folder / FILE).write_text("ab" * 32)
    (folder / SOURCE).write_text(WRONG)


async def calls(store: TestStore) -> AsyncIterator[tuple[str, list[str]]]:
    """Every verb, and the words of a good call of it, on what was made for it just before."""
    asks = {" ".join(path) for path, verb in every() if verb.asks}
    # The first key is given before the first token makes one.
    for path, prepare in sorted(OPERATED + LOOKED, key=lambda item: item[0] != "keys seed"):
        async with opened(store) as engine:
            words = await prepare(engine)
        yield path, [*path.split(), *words, *(["--yes"] if path in asks else [])]


def assert_documents(path: str, said: Said) -> None:
    assert said.lines != [] and said.code in (0, 1, 6), (path, said)
    assert all(isinstance(json.loads(line), dict) for line in said.lines), (path, said.lines)
    assert "flowfabric:" not in said.error, (path, said)
