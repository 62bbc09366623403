"""The peers, with the scenarios and backends that each supports, and the reason if a peer is absent."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.bars import POSTGRES, SQLITE
from benchmarks.contenders import ROOT, Program
from benchmarks.cpu import server_cpu_s
from benchmarks.report import NO_PEERS, Report

REDIS = "Redis"
VENV = ROOT / ".venv-peers"
REDIS_FOLDER = VENV / "redis"
# With these settings an acknowledged write is on disk, as in the other stores.
REDIS_SETTINGS = ("--appendonly", "yes", "--appendfsync", "always", "--save", "", "--databases", "512")


@dataclass(frozen=True, slots=True)
class Peer:
    """A module in benchmarks/peers and its abilities."""

    who: str
    module: str
    scenarios: frozenset[str]
    backends: tuple[str, ...]
    # The worker of this peer always runs in a separate process.
    is_apart: bool = False


_JOBS = frozenset({"jobs", "start"})
_STEPS = _JOBS | {"steps"}
PEERS = (
    Peer("DBOS", "dbos", _STEPS, (POSTGRES, SQLITE)),
    Peer("Absurd", "absurd", _STEPS, (POSTGRES,)),
    Peer("Procrastinate", "procrastinate", _JOBS, (POSTGRES,)),
    Peer("PgQueuer", "pgqueuer", _JOBS, (POSTGRES,)),
    Peer("Celery", "celery", _JOBS, (REDIS,), is_apart=True),
    Peer("Huey", "huey", _JOBS, (REDIS, SQLITE)),
)


@dataclass(slots=True)
class Entrants:
    """The peers of this run, installed for the interpreter `python`. Without an interpreter there are no peers."""

    python: Path | None = None
    redis: Redis | None = None
    why_no_redis: str = ""
    _numbers: dict[str, int] = field(default_factory=dict)

    def of(self, scenario: str, backend: str, report: Report) -> list[tuple[str, Program]]:
        """Return the peers that can take part, and report why other peers cannot."""
        able = [peer for peer in PEERS if scenario in peer.scenarios and backend in peer.backends]
        if self.python is None:
            report.absent.update({f"{peer.who} on {backend}": NO_PEERS for peer in able})
            return []
        if backend == REDIS and self.redis is None:
            report.absent.update({f"{peer.who} on {backend}": self.why_no_redis for peer in able})
            return []
        return [(peer.who, Program(self.python, f"benchmarks.peers.{peer.module}")) for peer in able]

    def redis_url(self, name: str) -> str:
        """Return the address of a separate database in the Redis server."""
        assert self.redis is not None, "peers that need Redis run only if it is available"
        number = self._numbers.setdefault(name, len(self._numbers))
        return f"unix://{self.redis.socket}?db={number}"

    def redis_meter(self) -> float | None:
        """Return the CPU of the Redis server."""
        return None if self.redis is None else server_cpu_s(self.redis.pid)


@dataclass(frozen=True, slots=True)
class Redis:
    """A running Redis server."""

    pid: int
    socket: Path
    version: str


@contextmanager
def entrants(folder: Path, report: Report) -> Iterator[Entrants]:
    """Yield the installed peers with a Redis server, which stops when the block ends."""
    python = VENV / "bin" / "python"
    if not python.exists():
        raise SystemExit("The peers are not installed: run `python3 dev.py bench --peers`.")
    program = find_redis()
    if program is None:
        reason = "redis-server is not on the PATH and could not be unpacked from a Debian package"
        yield Entrants(python, None, reason)
        return
    with _redis_server(program, folder) as redis:
        report.notes[REDIS] = redis.version
        report.notes["durability on Redis, for all"] = "appendonly=yes, appendfsync=always"
        yield Entrants(python, redis)


def find_redis() -> str | None:
    """Return the path of a Redis server: installed, or unpacked by dev.py next to the peers."""
    unpacked = REDIS_FOLDER / "usr" / "bin" / "redis-server"
    return shutil.which("redis-server") or (str(unpacked) if unpacked.exists() else None)


@contextmanager
def _redis_server(program: str, folder: Path) -> Iterator[Redis]:
    data, socket = folder / "redis", folder / "redis.sock"
    data.mkdir()
    libraries = ":".join(str(path) for path in REDIS_FOLDER.glob("usr/lib/*") if path.is_dir())
    environment = os.environ | {"LD_LIBRARY_PATH": libraries} if libraries else dict(os.environ)
    version = subprocess.run([program, "--version"], env=environment, check=True, capture_output=True, text=True)
    command = [program, "--port", "0", "--unixsocket", str(socket), "--dir", str(data), *REDIS_SETTINGS]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            _wait_for(socket, process)
            yield Redis(process.pid, socket, version.stdout.split(" sha")[0].strip())
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()


def _wait_for(socket: Path, process: subprocess.Popen[bytes]) -> None:
    ends = time.monotonic() + 30
    while not socket.exists():
        if process.poll() is not None or time.monotonic() > ends:
            raise RuntimeError("the Redis server did not start")
        time.sleep(0.02)
