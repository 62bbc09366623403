"""Opening a SQLite file safely: version, file system, pragmas."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from flowfabric.core.errors import InvalidRequest, Unavailable

MEMORY = ":memory:"
_OLDEST = (3, 38, 0)
_LONGEST_WAIT_S = 10.0
_NETWORK = ("nfs", "cifs", "smb", "afs", "ceph", "gluster", "fuse.sshfs", "lustre", "9p.ssh")
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
    if sqlite3.sqlite_version_info < _OLDEST:
        found, wanted = sqlite3.sqlite_version, ".".join(map(str, _OLDEST))
        raise InvalidRequest("unsupported_version", f"SQLite {found} is too old, {wanted} or later is needed")
    if path == MEMORY:
        return
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise InvalidRequest("storage_not_found", f"the folder {folder} does not exist; create it first")
    kind = _file_system(folder)
    if kind.startswith(_NETWORK):
        message = (
            f"{path} is on a network file system ({kind}), where SQLite cannot lock; use a local disk or PostgreSQL"
        )
        raise InvalidRequest("network_file_system", message, file_system=kind)


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


def _file_system(folder: Path) -> str:
    """The type of the file system that holds a folder, as far as the system tells."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return ""
    found = [(point, kind) for _, point, kind, *_ in mounts if folder.is_relative_to(point)]
    return max(found, key=lambda mount: len(mount[0]))[1] if found else ""
