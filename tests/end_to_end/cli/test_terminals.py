"""Every command on terminals of 80 and 120 columns: no line is too wide and ids are never truncated."""

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
from flowfabric.cli.terminal import display_width
from flowfabric.engine import Engine, Graph, NewWaitpoint, Single
from tests.end_to_end.cli.shell import Shell, store_options
from tests.end_to_end.cli.test_command_table import all_commands
from tests.end_to_end.cli.test_json import command_calls, write_files
from tests.end_to_end.cli.test_processes import SQLITE
from tests.scenarios import leased
from tests.stores import TestStore, opened

WIDTHS = pytest.mark.parametrize("columns", [80, 120])
LANE = "thumbnails-of-the-media-department-in-the-second-region"
INSTANCE = "payments-worker-7f9c6d5b84-xk2lp-4711-0a1b2c3d"
AUDIT = {"principal": "ada.lovelace@example.com", "reason": "the provider is down until tomorrow morning at eight " * 2}
# Matches the escape sequences that set colours and that clear the line of a progress bar.
_ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-9;]*[mK]")
_ID = re.compile(r"\b0[0-9a-f]{7}-[0-9a-f-]*")

# These commands print shell scripts and findings for editors, whose lines do not depend on the terminal width.
WIDTH_INDEPENDENT = {"completion", "check"}


async def fill_store(engine: Engine) -> None:
    """Create work in every state, with very long names."""
    await engine.executions.submit("resize-the-pictures-of-the-whole-catalogue-again", lane=LANE)
    lease = await leased(engine, kind="refund-of-a-whole-order", worker=INSTANCE)
    await engine.leases.progress(lease.fence, 40, "packing the parcels of the morning")
    wait = await leased(engine, kind="refund-of-a-whole-order", worker=INSTANCE)
    point = NewWaitpoint("approval-of-the-finance-department", approver="finance-department@example.com")
    await engine.leases.suspend(wait.fence, [point], Single(point.key), timeout="1h")
    failed = await leased(engine)
    await engine.leases.fail(failed.fence, "declined by the bank " * 12, failure_class="permanent")
    held = await engine.executions.submit("mail")
    await engine.operator.hold(held.id, **AUDIT)
    graph = Graph("nightly-report-of-all-departments")
    first = graph.add("extract-everything-from-everywhere", "job")
    graph.add("load-everything-into-the-warehouse", "job", after=[first])
    await engine.flows.submit(graph)
    await engine.workers.register(INSTANCE, ["default", LANE], capabilities=["gpu", "large-memory-for-pictures"])
    await engine.lanes.pause(LANE, **AUDIT)


def run_on_terminal(words: Sequence[str], columns: int) -> tuple[int, list[str]]:
    """Run a command in this process on a terminal of this width; return its exit code and lines."""
    controller, terminal_fd = pty.openpty()
    termios.tcsetwinsize(terminal_fd, (50, columns))
    pieces: list[bytes] = []
    reader = threading.Thread(target=_read, args=(controller, pieces))
    reader.start()
    with os.fdopen(terminal_fd, "w") as terminal, redirect_stdout(terminal), redirect_stderr(terminal):
        code = main(list(words))
    reader.join()
    os.close(controller)
    return code, _ESCAPE_SEQUENCE.sub("", b"".join(pieces).decode()).replace("\r", "\n").splitlines()


def _read(terminal: int, pieces: list[bytes]) -> None:
    while True:
        try:
            pieces.append(os.read(terminal, 4096))
        except OSError:  # The command has ended, and the terminal is closed.
            return


def assert_fits_without_cut_ids(path: str, lines: Sequence[str], columns: int) -> None:
    assert lines != [], path
    for line in lines:
        assert display_width(line) <= columns, (path, line)
        assert all(len(id_) == 36 for id_ in _ID.findall(line)), (path, line)


@SQLITE
@WIDTHS
async def test_every_command_fits_the_terminal(
    store: TestStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    async for path, words in command_calls(store):
        code, lines = await asyncio.to_thread(run_on_terminal, [*store_options(store), *words], columns)
        assert code in (0, 1, 6), (path, lines)
        if path not in WIDTH_INDEPENDENT:
            assert_fits_without_cut_ids(path, lines, columns)
        # Fill the store only after `keys seed`, because tokens in the new work would otherwise create the first key.
        if path == "keys seed":
            async with opened(store) as engine:
                await fill_store(engine)


@SQLITE
@WIDTHS
async def test_ids_and_names_for_the_next_command_are_complete(store: TestStore, columns: int) -> None:
    async with opened(store) as engine:
        await fill_store(engine)
        executions = [str(item.id) for item in (await engine.executions.list()).items]
        flows = [str(item.id) for item in (await engine.flows.list()).items]
        [wait] = await engine.waitpoints.list_suspended()
        [point] = await engine.waitpoints.list(wait.execution_id)
        [key] = await engine.keys.list()
    waiting = str(wait.execution_id)
    for words, expected_texts in (
        (["list"], executions),
        (["flows"], flows),
        (["flows", *flows], flows),
        (["waitpoints"], [waiting]),
        (["waitpoints", waiting], [str(point.id)]),
        (["show", waiting], [waiting, str(point.id)]),
        (["events"], [waiting, INSTANCE, AUDIT["principal"]]),
        (["workers"], [INSTANCE]),
        (["lanes"], [LANE]),
        (["stats"], [LANE]),
        (["doctor"], [LANE]),
        (["keys"], [key.kid]),
    ):
        _, lines = await asyncio.to_thread(run_on_terminal, [*store_options(store), *words], columns)
        assert_fits_without_cut_ids(words[0], lines, columns)
        assert [text for text in expected_texts if not any(text in line for line in lines)] == [], (words, lines)


@WIDTHS
async def test_help_fits_the_terminal(bare_shell: Shell, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for path in ((), *(path for path, _ in all_commands())):
        assert_fits_without_cut_ids(" ".join(path), (await bare_shell.run(*path, "--help")).lines, columns)


@SQLITE
async def test_events_are_not_wrapped_in_a_pipe(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        await fill_store(engine)
        [held] = (await engine.executions.list(kind="mail")).items
    lines, documents = (await shell.run("events")).lines, (await shell.run("events", "--json")).lines
    assert len(lines) == len(documents) and max(map(display_width, lines)) > 120
    [event, explained] = (await shell.run("history", str(held.id))).lines
    assert AUDIT["reason"] in event and AUDIT["reason"] in explained
