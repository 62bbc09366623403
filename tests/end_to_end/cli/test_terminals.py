"""What every verb shows on a terminal of 80 and of 120 columns: no line is wider, and nothing that is copied is cut."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import termios
import threading
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from flowfabric.cli.main import main
from flowfabric.cli.screen import width_of
from flowfabric.engine import Engine, Fresh, Graph, Single
from tests.end_to_end.cli.shell import Shell, words_for
from tests.end_to_end.cli.test_json import calls, write_files
from tests.end_to_end.cli.test_processes import SQLITE
from tests.end_to_end.cli.test_registry import every
from tests.scenarios import leased
from tests.stores import TestStore, opened

WIDTHS = pytest.mark.parametrize("columns", [80, 120])
LANE = "thumbnails-of-the-media-department-in-the-second-region"
INSTANCE = "payments-worker-7f9c6d5b84-xk2lp-4711-0a1b2c3d"
WHO = {"principal": "ada.lovelace@example.com", "reason": "the provider is down until tomorrow morning, they say " * 2}
# What steers the terminal: colours, and the line that a bar rewrites.
_STEERING = re.compile(r"\x1b\[[0-9;]*[mK]")
_ID = re.compile(r"\b0[0-9a-f]{7}-[0-9a-f-]*")

# A script for a shell, and findings that an editor looks for, are the same on any screen.
AS_THEY_ARE = {"completion", "check"}


async def filled(engine: Engine) -> None:
    """Work in every state, with names that are longer than anybody would like."""
    await engine.executions.submit("resize-the-pictures-of-the-whole-catalogue-again", lane=LANE)
    lease = await leased(engine, kind="refund-of-a-whole-order", worker=INSTANCE)
    await engine.leases.progress(lease.fence, 40, "packing the parcels of the morning")
    wait = await leased(engine, kind="refund-of-a-whole-order", worker=INSTANCE)
    point = Fresh("approval-of-the-finance-department", approver="finance-department@example.com")
    await engine.leases.suspend(wait.fence, [point], Single(point.key), timeout="1h")
    failed = await leased(engine)
    await engine.leases.fail(failed.fence, "declined by the bank " * 12, failure_class="permanent")
    held = await engine.executions.submit("mail")
    await engine.operator.hold(held.id, **WHO)
    graph = Graph("nightly-report-of-all-departments")
    first = graph.add("extract-everything-from-everywhere", "job")
    graph.add("load-everything-into-the-warehouse", "job", after=[first])
    await engine.flows.submit(graph)
    await engine.workers.register(INSTANCE, ["default", LANE], capabilities=["gpu", "large-memory-for-pictures"])
    await engine.lanes.pause(LANE, **WHO)


def shown(words: Sequence[str], columns: int) -> tuple[int, list[str]]:
    """Exit code and lines of a command of this process on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, columns))
    pieces: list[bytes] = []
    reader = threading.Thread(target=_read, args=(ours, pieces))
    reader.start()
    with os.fdopen(theirs, "w") as terminal, redirect_stdout(terminal), redirect_stderr(terminal):
        code = main(list(words))
    reader.join()
    os.close(ours)
    return code, _STEERING.sub("", b"".join(pieces).decode()).replace("\r", "\n").splitlines()


def _read(terminal: int, pieces: list[bytes]) -> None:
    while True:
        try:
            pieces.append(os.read(terminal, 4096))
        except OSError:  # The other end is closed.
            return


def assert_looks_right(path: str, lines: Sequence[str], columns: int) -> None:
    assert lines != [], path
    for line in lines:
        assert width_of(line) <= columns, (path, line)
        assert all(len(found) == 36 for found in _ID.findall(line)), (path, line)


@SQLITE
@WIDTHS
async def test_every_verb_fits_the_terminal(
    store: TestStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    async for path, words in calls(store):
        code, lines = await asyncio.to_thread(shown, [*words_for(store), *words], columns)
        assert code in (0, 1, 6), (path, lines)
        if path not in AS_THEY_ARE:
            assert_looks_right(path, lines, columns)
        # Not before the first key is given: the first token would make one.
        if path == "keys seed":
            async with opened(store) as engine:
                await filled(engine)


@SQLITE
@WIDTHS
async def test_what_is_copied_into_the_next_command_is_whole(store: TestStore, columns: int) -> None:
    async with opened(store) as engine:
        await filled(engine)
        executions = [str(item.id) for item in (await engine.executions.list()).items]
        flows = [str(item.id) for item in (await engine.flows.list()).items]
        [wait] = await engine.waitpoints.list_suspended()
        [point] = await engine.waitpoints.list(wait.execution_id)
        [key] = await engine.keys.list()
    waiting = str(wait.execution_id)
    for words, whole in (
        (["list"], executions), (["flows"], flows), (["flows", *flows], flows), (["waitpoints"], [waiting]),
        (["waitpoints", waiting], [str(point.id)]), (["show", waiting], [waiting, str(point.id)]),
        (["events"], [waiting, INSTANCE, WHO["principal"]]), (["workers"], [INSTANCE]), (["lanes"], [LANE]),
        (["stats"], [LANE]), (["doctor"], [LANE]), (["keys"], [key.kid]),
    ):  # fmt: skip
        _, lines = await asyncio.to_thread(shown, [*words_for(store), *words], columns)
        assert_looks_right(words[0], lines, columns)
        assert [text for text in whole if not any(text in line for line in lines)] == [], (words, lines)


@WIDTHS
async def test_help_fits_the_terminal(bare: Shell, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for path in ((), *(path for path, _ in every())):
        assert_looks_right(" ".join(path), (await bare.run(*path, "--help")).lines, columns)


@SQLITE
async def test_a_pipe_gets_an_event_a_line(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        await filled(engine)
        [held] = (await engine.executions.list(kind="mail")).items
    lines, documents = (await shell.run("events")).lines, (await shell.run("events", "--json")).lines
    assert len(lines) == len(documents) and max(map(width_of, lines)) > 120
    [event, explained] = (await shell.run("history", str(held.id))).lines
    assert WHO["reason"] in event and WHO["reason"] in explained
