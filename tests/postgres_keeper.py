"""Run one throw-away PostgreSQL from a process between the tests and the server.

    tests ──stdin/stdout──▶ keeper ──parent-death signal──▶ postgres

The keeper creates the data folder, and starts and stops the server on command, one command per line. When its input
ends, it stops the server and removes the folder. This happens even if the tests are killed by SIGKILL. The keeper runs
in its own session, so a signal to the tests' process group does not reach it. If the keeper itself is killed, the
kernel stops the server.

PostgreSQL refuses to run as root, so a keeper that runs as root starts the server as "nobody". This changes
nothing outside the folder. If "nobody" cannot reach the binaries, the keeper copies them.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from urllib.parse import quote

STOP_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT, "kill": signal.SIGKILL}
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.02
# The limit for the length of a socket path, without its final NUL, on the strictest known system (macOS).
SOCKET_PATH_LIMIT = 103
SOCKET_NAME = ".s.PGSQL.5432"
PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve commands from standard input.

    The arguments are the bin folder, the settings as JSON and, for a standby, the address of its primary.
    """
    signal.signal(signal.SIGTERM, _exit)
    with _temporary_folder() as folder:
        try:
            _serve(Server.create(folder, Path(sys.argv[1]), json.loads(sys.argv[2]), *sys.argv[3:]))
        except (OSError, subprocess.SubprocessError, KeeperError) as error:
            _answer({"error": _explain(error)})


def _serve(server: Server) -> None:
    try:
        _answer({"dsn": server.dsn})
        for line in sys.stdin:
            _answer(_obey(server, line.split()))
    finally:
        server.stop("immediate")


class KeeperError(Exception):
    """A command failed. The message is sent to the tests."""


@dataclass
class Server:
    """A data folder and, while the server runs, its postmaster process."""

    account: Account
    bin: Path
    data: Path
    sockets: Path
    log: Path
    settings: dict[str, str]
    process: subprocess.Popen[bytes] | None = None

    @classmethod
    def create(cls, folder: Path, bin_folder: Path, settings: dict[str, str], primary: str | None = None) -> Server:
        """Create a server in the folder, without starting it: an empty one, or a standby with a copy of the primary."""
        account = Account.for_server()
        data, sockets = account.make_folder(folder / "data"), account.make_folder(folder / "s")
        server = cls(account, account.reachable(bin_folder, folder), data, sockets, folder / "log", settings)
        if primary is not None:
            options = "--write-recovery-conf --checkpoint=fast --no-sync --wal-method=stream"
            account.run(server.bin / "pg_basebackup", *options.split(), "--dbname", primary, "--pgdata", data)
            return server
        options = "--username=postgres --auth=trust --encoding=UTF8 --no-locale --no-sync --no-instructions"
        account.run(server.bin / "initdb", *options.split(), "--pgdata", data)
        return server

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres@/postgres?host={quote(str(self.sockets))}"

    def start(self) -> None:
        if self.process is not None:
            raise KeeperError("the server is already running")
        settings = {"listen_addresses": "", "unix_socket_directories": str(self.sockets)} | self.settings
        options = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        with self.log.open("ab") as log:
            self.process = self.account.spawn(self.bin / "postgres", "-D", self.data, *options, log=log.fileno())
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._is_ready(self.process.pid):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop("immediate")
                raise KeeperError(f"PostgreSQL did not start:\n{self.log.read_text(errors='replace')[-4000:]}")
            time.sleep(POLL_S)

    def stop(self, mode: str) -> None:
        """Stop the server. Do nothing if it does not run."""
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(STOP_SIGNALS[mode])
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise KeeperError(f"PostgreSQL did not stop within {STOP_TIMEOUT_S:.0f} s and was killed") from None

    def _is_ready(self, pid: int) -> bool:
        """Return True if the postmaster's file reports ready. Line 1 is its pid, line 8 its status."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"


@dataclass(frozen=True)
class Account:
    """The account that runs the server: the current user, or "nobody" for root."""

    uid: int | None
    gid: int | None

    @classmethod
    def for_server(cls) -> Account:
        if os.geteuid() != 0:
            return cls(None, None)
        try:
            nobody = pwd.getpwnam("nobody")
        except KeyError:
            raise KeeperError('PostgreSQL refuses root, and this system has no account "nobody"') from None
        return cls(nobody.pw_uid, nobody.pw_gid)

    def make_folder(self, path: Path) -> Path:
        path.mkdir(0o700)
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)
        return path

    def reachable(self, bin_folder: Path, folder: Path) -> Path:
        """Return a bin folder that the account can execute: the original one, or a copy below `folder`."""
        try:
            self.run(bin_folder / "postgres", "--version", cwd=folder)
        except (PermissionError, subprocess.CalledProcessError):
            if self.uid is None:
                raise
            return _copy_installation(bin_folder, folder / "copy")
        return bin_folder

    def run(self, *words: str | Path, cwd: Path | None = None) -> None:
        subprocess.run(
            words,
            check=True,
            capture_output=True,
            timeout=START_TIMEOUT_S,
            env=_environment(),
            cwd=cwd or "/",
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else [],
        )

    def spawn(self, *words: str | Path, log: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=_environment(),
            cwd="/",
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else [],
            # The kernel watches the thread that forks. The keeper has only one thread, so this is safe.
            preexec_fn=_stop_with_parent,  # noqa: PLW1509
        )


def _obey(server: Server, words: list[str]) -> dict[str, str]:
    try:
        match words:
            case ["start"]:
                server.start()
            case ["stop", mode]:
                server.stop(mode)
            case _:
                raise KeeperError(f"unknown command {words}")
    except (OSError, KeeperError) as error:
        return {"error": _explain(error)}
    return {}


def _answer(message: dict[str, str]) -> None:
    # If the tests died during a command, the pipe is closed. The loop then ends with the input.
    with contextlib.suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), json.dumps(message).encode() + b"\n")


def _explain(error: Exception) -> str:
    stderr = getattr(error, "stderr", None)
    return f"{error}\n{stderr.decode(errors='replace')}" if stderr else str(error)


def _exit(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(1)


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Yield a new folder whose socket path is short enough and whose parents the server's account may enter."""
    home = Path(tempfile.gettempdir()).resolve()
    longest = home / "flowfabric-pg-xxxxxxxx" / "s" / SOCKET_NAME
    enterable = os.geteuid() != 0 or all(parent.stat().st_mode & 0o001 for parent in (home, *home.parents))
    if len(os.fsencode(longest)) > SOCKET_PATH_LIMIT or not enterable:
        home = Path("/tmp")
    folder = Path(tempfile.mkdtemp(prefix="flowfabric-pg-", dir=home))
    try:
        if os.geteuid() == 0:
            folder.chmod(0o711)
        yield folder
    finally:
        shutil.rmtree(folder)


def _copy_installation(bin_folder: Path, target: Path) -> Path:
    """Copy the installation around `bin_folder`, with the libraries that wheels store next to the package."""
    root = bin_folder.parent
    package = root.parent
    copied = target / package.name / root.name
    shutil.copytree(root, copied, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, target / libraries.name)
    return copied / bin_folder.name


def _environment() -> dict[str, str]:
    """Return the environment without variables that affect PostgreSQL."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return kept | {"LC_ALL": "C", "TZ": "UTC"}


def _stop_with_parent() -> None:
    """Request an immediate shutdown when the keeper dies. The child calls this after it has changed its account."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)


if __name__ == "__main__":
    main()
