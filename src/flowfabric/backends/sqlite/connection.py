"""Open a SQLite file safely: check the version and the file system, and set pragmas."""

from __future__ import annotations

import re
import sqlite3
import time
from pathlib import Path

from flowfabric.backends.sqlite.lending import WriterConnection
from flowfabric.core.errors import InvalidRequest, Unavailable

MEMORY = ":memory:"
_MIN_VERSION = (3, 38, 0)
_MAX_WAIT_S = 10.0
_MOUNTS = Path("/proc/self/mounts")
_ESCAPED = re.compile(r"\\([0-7]{3})")
# Network file systems, which other hosts can write to. Their names may have the prefix `fuse.`.
_NETWORK = (
    "nfs", "cifs", "smb", "afs", "ceph", "gluster", "lustre", "beegfs", "davfs", "sshfs", "s3fs", "rclone", "gcsfuse",
    "goofys", "juicefs", "blobfuse", "curlftpfs", "mfs", "moosefs", "seaweedfs",
)  # fmt: skip
_PROGRESS_STEPS = 100_000


def connect(path: str, *, durable: bool, timeout_s: float) -> WriterConnection:
    """Open a connection of the writer in manual transaction mode. Automatic checkpoints are off; see `checkpoint.py`.

    The file must exist. If SQLite created an empty file next to the log of a moved store, it would delete that log.
    """
    connection = sqlite3.connect(
        path if path == MEMORY else f"{Path(path).as_uri()}?mode=rw",
        uri=True,
        timeout=min(timeout_s, _MAX_WAIT_S),
        isolation_level=None,
        check_same_thread=False,
        factory=WriterConnection,
    )
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    return connection


def use_write_ahead_log(connection: sqlite3.Connection, path: str, timeout_s: float) -> None:
    """Switch the file to write-ahead logging, so that readers and the writer do not block each other."""
    [mode] = _switch_to_wal(connection, min(timeout_s, _MAX_WAIT_S))
    if path != MEMORY and mode != "wal":
        raise Unavailable("storage_without_wal", f"{path} cannot use write-ahead logging; move it to a local disk")


def limit_statements(connection: sqlite3.Connection, timeout_s: float) -> None:
    """Interrupt statements that run longer than the timeout, counted from this call."""
    ends = time.monotonic() + timeout_s
    connection.set_progress_handler(lambda: time.monotonic() > ends, _PROGRESS_STEPS)


def check_environment(path: str) -> None:
    """Raise if SQLite is too old, the system has no file locks, or the folder is missing or on a network."""
    check_version(sqlite3.sqlite_version_info)
    if path == MEMORY:
        return
    _check_locks(path)
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise Unavailable("storage_not_found", f"the folder {folder} does not exist; create it first")
    check_file_system(path, find_file_system(folder, _read_mounts()))


def _check_locks(path: str) -> None:
    try:
        import fcntl  # noqa: F401
    except ModuleNotFoundError:
        message = (
            f"{path} cannot be opened, because a store in a SQLite file needs the file locks of Linux or macOS; use "
            "PostgreSQL, a store in memory (:memory:), or the Windows Subsystem for Linux"
        )
        raise InvalidRequest("file_locks_missing", message, path=path) from None


def check_version(version: tuple[int, ...]) -> None:
    """Raise if SQLite is too old."""
    if version < _MIN_VERSION:
        actual, required = (".".join(map(str, numbers)) for numbers in (version, _MIN_VERSION))
        raise InvalidRequest("unsupported_version", f"SQLite {actual} is too old; use {required} or later")


def check_file_system(path: str, kind: str) -> None:
    """Raise if the file system is a network file system, because its locks are valid on one host only."""
    if kind.removeprefix("fuse.").startswith(_NETWORK):
        message = (
            f"{path} is on a network file system ({kind}), where SQLite cannot lock; use a local disk or PostgreSQL"
        )
        raise InvalidRequest("network_file_system", message, file_system=kind)


def find_file_system(folder: Path, mounts: str) -> str:
    """Return the type of the file system of a folder from the text of /proc/self/mounts, or an empty string."""
    lines = [line.split(" ") for line in mounts.split("\n")]
    points = [(_unescape(words[1]), words[2]) for words in lines if len(words) > 2]
    # If two mounts have the same mount point, the later mount hides the earlier one.
    matches = [(len(point), place, kind) for place, (point, kind) in enumerate(points) if folder.is_relative_to(point)]
    return max(matches)[2] if matches else ""


def _switch_to_wal(connection: sqlite3.Connection, wait_s: float) -> tuple[str]:
    """Switch to write-ahead logging. SQLite does not wait for a writer here, so this function retries."""
    ends = time.monotonic() + wait_s
    while True:
        try:
            mode: tuple[str] = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.01)
        else:
            return mode


def _read_mounts() -> str:
    """Return the mounts of this process, or an empty string if they are not available."""
    try:
        return _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def _unescape(point: str) -> str:
    """Return a mount point without the kernel's octal escapes, such as `\\040` for a space."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), point)
