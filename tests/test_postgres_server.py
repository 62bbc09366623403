"""Test that the test server keeps its data across restarts and removes its files at the end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from tests.postgres_server import BIN_VARIABLE, DSN_VARIABLE, find_binaries, postgres_server

ROOT = Path(__file__).parent.parent

# A program that starts a server, prints its address, and waits until the test kills it.
VICTIM = """
import sys
from tests.postgres_server import postgres_server
with postgres_server() as server:
    print(server.dsn, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def own_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make these tests start a server, even if the environment names an existing one."""
    monkeypatch.delenv(DSN_VARIABLE, raising=False)


@pytest.mark.usefixtures("own_server")
@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_restarted_server_keeps_committed_data(mode: Literal["fast", "immediate"]) -> None:
    with postgres_server() as server:
        await _execute(server.dsn, "CREATE TABLE kept AS SELECT 1 AS one")
        server.stop(mode)
        with pytest.raises(OSError, match=r"No such file|refused"):
            await _execute(server.dsn, "SELECT 1")
        server.start()
        await _execute(server.dsn, "SELECT one FROM kept")


@pytest.mark.usefixtures("own_server")
def test_server_and_its_folder_are_removed_when_the_tests_are_killed() -> None:
    command, pipe = [sys.executable, "-c", VICTIM], subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, text=True, stdin=pipe, stdout=pipe, stderr=pipe) as victim:
        assert victim.stdout is not None, "the process was started with a pipe"
        assert victim.stderr is not None, "the process was started with a pipe"
        folder = _folder_of(victim.stdout.readline().strip())
        postmaster = int((folder / "data" / "postmaster.pid").read_text().splitlines()[0])
        victim.kill()
        # The keeper inherited this pipe. The pipe closes when the keeper ends, which happens after the cleanup.
        assert victim.stderr.read() == ""
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(postmaster, 0)


@pytest.mark.usefixtures("own_server")
def test_server_that_cannot_start_reports_the_reason() -> None:
    with pytest.raises(RuntimeError, match="max_connections"), postgres_server(max_connections="none"):
        pytest.fail("it started")


def test_a_given_server_is_used_but_never_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DSN_VARIABLE, "postgresql://given/database")
    with postgres_server() as server:
        assert server.dsn == "postgresql://given/database"
        with pytest.raises(RuntimeError, match=DSN_VARIABLE):
            server.stop()


def test_a_missing_server_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(BIN_VARIABLE, str(tmp_path))
    with pytest.raises(RuntimeError, match="does not contain postgres"):
        find_binaries()


async def _execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def _folder_of(dsn: str) -> Path:
    return Path(parse_qs(urlsplit(dsn).query)["host"][0]).parent
