"""Check that a log belongs to the database next to it.

If a copy is moved over a store, or a file and a log are copied at different times, a log may lie next to a database
that it was not written for. SQLite cannot notice this: it would apply the log and damage the database.

Every transaction of the engine writes the row of `ff_clock`: its own time, and the time of the transaction before it.
So the first version of this row in the log names the transaction that the log continues. The log belongs to the
database if the database contains that transaction, or one from the log itself, because a checkpoint has begun.
"""

from __future__ import annotations

import sqlite3
import struct
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, NamedTuple

from flowfabric.backends.sqlite.store_file import INDEX_SUFFIX, LOG_SUFFIX, connect_read_only
from flowfabric.core.errors import Unavailable

_TRIES = 3
_PAUSE_S = 0.02
_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24
_MAGIC = (0x377F0682, 0x377F0683)
_LEAF = 0x0D
_INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_CONSTANTS = {0: None, 8: 0, 9: 1}
_FIRST_TEXT = 12
_LARGEST_PAGE = 65536
_READ_ROOT = "SELECT rootpage FROM sqlite_schema WHERE type = 'table' AND name = 'ff_clock'"


class ClockRow(NamedTuple):
    """One version of the row of `ff_clock`."""

    newest_at: int | None
    previous_at: int | None


def has_log(path: str) -> bool:
    """Return whether there is a log with content."""
    try:
        return Path(path + LOG_SUFFIX).stat().st_size > _HEADER_BYTES
    except OSError:
        return False


def has_lost_log(path: str) -> bool:
    """Return whether a database without content in its log has lost that log.

    After a normal close, neither the log nor its index exists. A finished checkpoint cuts the file to the size in its
    header, so a longer file needs the rest of a log. Only SQLite may open the file: if this process uses the store
    already, closing the file in another way would end the locks of SQLite.
    """
    if Path(path + INDEX_SUFFIX).exists() and not Path(path + LOG_SUFFIX).exists():
        return True
    try:
        with closing(connect_read_only(path, without_log=True)) as connection:
            [page_bytes] = connection.execute("PRAGMA page_size").fetchone()
            [pages] = connection.execute("PRAGMA page_count").fetchone()
    except sqlite3.Error:
        return False  # This is no database, or it is damaged. Opening it raises.
    return bool(pages * page_bytes < Path(path).stat().st_size)


def check_log(path: str) -> bool:
    """Raise if the log was not written for the database. Return False if that cannot be decided.

    No process may checkpoint during the call.
    """
    for _ in range(_TRIES):
        # A log that another process is just restarting may be read in an inconsistent state, so try again.
        verdict = _belongs(path)
        if verdict is not False:
            return verdict is True
        time.sleep(_PAUSE_S)
    raise foreign_log_error(path)


def foreign_log_error(path: str) -> Unavailable:
    """Return the error for a log that does not belong to the database."""
    message = (
        f"{path}{LOG_SUFFIX} is the log of another file than {path}, which was probably moved or copied alone; put the "
        "right file in place, or stop all processes that use it and run `flowfabric restore BACKUP`"
    )
    return Unavailable("storage_log_mismatch", message, path=path)


def orphaned_log_error(path: str) -> Unavailable:
    """Return the error for a log without a database."""
    message = (
        f"there is no file {path}, but its log {path}{LOG_SUFFIX} may contain acknowledged work; put the file back, "
        "run `flowfabric restore BACKUP`, or delete the log to start with an empty store"
    )
    return Unavailable("storage_log_mismatch", message, path=path)


def _belongs(path: str) -> bool | None:
    """Return whether the log belongs to the database, or None if that cannot be decided."""
    try:
        with closing(connect_read_only(path, without_log=True)) as connection:
            root = connection.execute(_READ_ROOT).fetchone()
            columns = [row["name"] for row in connection.execute("PRAGMA table_info(ff_clock)")]
            row = connection.execute("SELECT * FROM ff_clock").fetchone()
            stored = ClockRow(*(row[name] if name in columns else None for name in ClockRow._fields))
    except (sqlite3.Error, TypeError):
        return None  # The table is only in the log, or the database is damaged. A full check decides.
    with Path(path + LOG_SUFFIX).open("rb") as log:
        rows = _clock_rows(log, root["rootpage"], columns)
        first = next(rows, None)
        if first is None:
            return None
        # A transaction of the caller changes only `newest_at`.
        if stored.newest_at == first.previous_at or stored.previous_at == first.previous_at:
            return True
        return stored == first or any(row == stored for row in rows)


def _clock_rows(log: BinaryIO, page: int, columns: list[str]) -> Iterator[ClockRow]:
    """Yield the versions of the row in a log, oldest first."""
    header = log.read(_HEADER_BYTES)
    if len(header) < _HEADER_BYTES:
        return
    magic, _, page_size, _ = struct.unpack_from(">4I", header)
    salt = header[16:24]
    if magic not in _MAGIC:
        return
    frame_bytes = _FRAME_HEADER_BYTES + (_LARGEST_PAGE if page_size == 1 else page_size)
    while True:
        frame = log.read(frame_bytes)
        # After a restart of the log, frames with another salt remain behind the new frames.
        if len(frame) < frame_bytes or frame[8:16] != salt:
            return
        if int.from_bytes(frame[:4], "big") == page:
            values = _parse_row(frame[_FRAME_HEADER_BYTES:])
            if values is None:
                return
            by_name = dict(zip(columns, values, strict=False))
            yield ClockRow(*(by_name.get(name) for name in ClockRow._fields))


def _parse_row(page: bytes) -> list[int | None] | None:
    """Return the integers of the only row of a table, with None for text. Return None for a page of other content."""
    if page[0] != _LEAF or int.from_bytes(page[3:5], "big") != 1:
        return None
    try:
        at = int.from_bytes(page[8:10], "big")
        _, at = _varint(page, at)
        _, at = _varint(page, at)
        header_bytes, first = _varint(page, at)
        ends, types = at + header_bytes, []
        while first < ends:
            kind, first = _varint(page, first)
            types.append(kind)
        return _parse_integers(page, ends, types)
    except (IndexError, KeyError):
        return None


def _parse_integers(page: bytes, at: int, types: list[int]) -> list[int | None]:
    values: list[int | None] = []
    for kind in types:
        if kind in _CONSTANTS:
            values.append(_CONSTANTS[kind])
        elif kind >= _FIRST_TEXT:
            values.append(None)
            at += (kind - _FIRST_TEXT) // 2
        else:
            size = _INTEGER_BYTES[kind]
            values.append(int.from_bytes(page[at : at + size], "big", signed=True))
            at += size
    return values


def _varint(page: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, and the position after it. The numbers here take at most eight bytes."""
    value = 0
    for position in range(at, at + 8):
        value = value << 7 | page[position] & 0x7F
        if page[position] < 0x80:
            return value, position + 1
    raise IndexError(at)
