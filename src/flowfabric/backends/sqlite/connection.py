"""Opening a SQLite file safely: version, file system, pragmas."""

from __future__ import annotations

import re
import sqlite3
import time
from pathlib import Path

from flowfabric.core.errors import InvalidRequest, Unavailable

MEMORY = ":memory:"
_OLDEST = (3, 38, 0)
_LONGEST_WAIT_S = 10.0
_MOUNTS = Path("/proc/self/mounts")
_ESCAPED = re.compile(r"\\([0-7]{3})")
# File systems that other hosts can write to; below `fuse.` too.
_NETWORK = (
    "nfs", "cifs", "smb", "afs", "ceph", "gluster", "lustre", "beegfs", "davfs", "sshfs", "s3fs", "rclone", "gcsfuse",
    "goofys", "juicefs", "blobfuse", "curlftpfs", "mfs", "moosefs", "seaweedfs",
)  # fmt: skip
_CHECK_EVERY_STEPS = 100_000


def connect(path: str, *, durable: bool, timeout_s: float, read_only: bool = False) -> sqlite3.Connection:
    """A connection in manual transaction mode. Nobody checkpoints by itself: see `checkpoint.py`."""
    wait_s = min(timeout_s, _LONGEST_WAIT_S)
    connection = sqlite3.connect(path, timeout=wait_s, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    if read_only:
        connection.execute("PRAGMA query_only = ON")
    return connection


def use_write_ahead_log(connection: sqlite3.Connection, path: str, timeout_s: float) -> None:
    """Switches the file to write-ahead logging, which is what lets readers and the writer work side by side."""
    [mode] = _switch(connection, min(timeout_s, _LONGEST_WAIT_S))
    if path != MEMORY and mode != "wal":
        raise Unavailable("storage_without_wal", f"{path} cannot use write-ahead logging here; move it to a local disk")


def limit_statements(connection: sqlite3.Connection, timeout_s: float) -> None:
    """Interrupts whatever runs longer than the timeout from now on, until it is called again."""
    ends = time.monotonic() + timeout_s
    connection.set_progress_handler(lambda: time.monotonic() > ends, _CHECK_EVERY_STEPS)


def check_environment(path: str) -> None:
    """Refuses a SQLite that is too old, a missing folder and a network file system."""
    check_version(sqlite3.sqlite_version_info)
    if path == MEMORY:
        return
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise Unavailable("storage_not_found", f"the folder {folder} does not exist; create it first")
    check_file_system(path, file_system(folder, _mounts()))


def check_version(version: tuple[int, ...]) -> None:
    """Refuses a SQLite that is too old."""
    if version < _OLDEST:
        found, wanted = (".".join(map(str, numbers)) for numbers in (version, _OLDEST))
        raise InvalidRequest("unsupported_version", f"SQLite {found} is too old, {wanted} or later is needed")


def check_file_system(path: str, kind: str) -> None:
    """Refuses a network file system, where a lock holds on one host only."""
    if kind.removeprefix("fuse.").startswith(_NETWORK):
        message = (
            f"{path} is on a network file system ({kind}), where SQLite cannot lock; use a local disk or PostgreSQL"
        )
        raise InvalidRequest("network_file_system", message, file_system=kind)


def file_system(folder: Path, mounts: str) -> str:
    """The type of the file system that holds a folder, by the text of /proc/self/mounts; empty if it does not say."""
    lines = [line.split(" ") for line in mounts.split("\n")]
    points = [(_unescaped(words[1]), words[2]) for words in lines if len(words) > 2]
    # Of two on the same point the later one is on top, and hides the other.
    found = [(len(point), place, kind) for place, (point, kind) in enumerate(points) if folder.is_relative_to(point)]
    return max(found)[2] if found else ""


def _switch(connection: sqlite3.Connection, wait_s: float) -> tuple[str]:
    """SQLite does not wait by itself for a writer here, so this does, as long as any other statement would."""
    ends = time.monotonic() + wait_s
    while True:
        try:
            found: tuple[str] = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.01)
        else:
            return found


def _mounts() -> str:
    """The mounts of this process, as far as the system tells."""
    try:
        return _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def _unescaped(point: str) -> str:
    """A mount point as it is called: the kernel writes a space as `\\040`."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), point)
