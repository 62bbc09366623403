"""Positions in the order of events, and cursors, which store a position outside the database.

A position is a transaction id and an event id. On SQLite the transaction id is always 0. A reader at a position has
read every event up to that position. A cursor adds the store and the namespace, so that a cursor of a different store
or namespace is refused. It also adds the era (see `eras.py`). A cursor of era 0 has the older format without an era. A
cursor is not signed, because its holder may read the whole namespace anyway.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from flowfabric.core.errors import InvalidRequest, Refused

_PREFIX = "ffc1."
_ERA_PREFIX = "ffc2."
_BYTES = 16 + 8 + 8 + 8 + 4
_ERA_BYTES = 8
_MAX_CHARACTERS = 128


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A position in the order of events."""

    xid: int
    id: int


FIRST = Position(0, 0)


class Start(StrEnum):
    """Where a subscription without a cursor begins."""

    NOW = "now"
    BEGINNING = "beginning"


@dataclass(frozen=True, slots=True)
class CursorScope:
    """The store, namespace and era that a cursor belongs to."""

    store: UUID
    namespace: str
    era: int = 0

    @property
    def namespace_digest(self) -> bytes:
        """The digest of the namespace, which is part of every cursor."""
        return hashlib.sha256(self.namespace.encode()).digest()[:8]


@dataclass(frozen=True, slots=True)
class SubscriptionStart:
    """Where a subscription begins, and the last trimmed position at that time."""

    place: CursorScope
    position: Position
    trimmed: Position


def write_cursor(place: CursorScope, position: Position) -> str:
    """Return a position as cursor text."""
    body = place.store.bytes + place.namespace_digest + position.xid.to_bytes(8) + position.id.to_bytes(8)
    if place.era:
        body += place.era.to_bytes(_ERA_BYTES)
    prefix = _ERA_PREFIX if place.era else _PREFIX
    return prefix + base64.urlsafe_b64encode(body + _check(body)).decode().rstrip("=")


def check_cursor(cursor: object) -> str:
    """Return the text if it is a well-formed cursor; raise `cursor_invalid` otherwise."""
    _unpack(cursor)
    return str(cursor)


def read_cursor(cursor: object, place: CursorScope) -> tuple[int, Position]:
    """Return the era and the position in a cursor.

    Raise `cursor_invalid` if the text is malformed, and `cursor_foreign` if the cursor belongs to a different store or
    namespace.
    """
    body = _unpack(cursor)
    if body[:16] != place.store.bytes:
        message = "the cursor belongs to another store; connect to that store or start without a cursor"
        raise InvalidRequest("cursor_foreign", message, belongs_to="another store")
    if body[16:24] != place.namespace_digest:
        message = f"the cursor belongs to another namespace than {place.namespace!r}; use engine.for_namespace(…)"
        raise InvalidRequest("cursor_foreign", message, belongs_to="another namespace")
    era = int.from_bytes(body[40:48]) if len(body) > _BYTES else 0
    return era, Position(int.from_bytes(body[24:32]), int.from_bytes(body[32:40]))


def require_kept(position: Position, trimmed: Position) -> Position:
    """Return the position; raise `cursor_expired` if events after it may have been trimmed.

    The first position is always valid.
    """
    if FIRST < position < trimmed:
        raise _expired("this cursor")
    return position


def require_in_time(position: Position, trimmed_before: Position, trimmed: Position) -> None:
    """Raise `cursor_expired` if events after the position may have been trimmed since the last read."""
    if FIRST < position < trimmed and trimmed_before < trimmed:
        raise _expired("the last one read")


def _expired(place: str) -> Refused:
    message = (
        f"events after {place} were trimmed; start at 'now' or at the 'beginning', "
        "and subscribe with a name to keep events until they are read"
    )
    return Refused("cursor_expired", message)


def _unpack(cursor: object) -> bytes:
    body = b""
    size = _BYTES
    if isinstance(cursor, str) and cursor.startswith((_PREFIX, _ERA_PREFIX)) and len(cursor) <= _MAX_CHARACTERS:
        size += _ERA_BYTES if cursor.startswith(_ERA_PREFIX) else 0
        text = cursor[len(_PREFIX) :]
        try:
            body = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            body = b""
    if len(body) != size or _check(body[:-4]) != body[-4:]:
        raise InvalidRequest("cursor_invalid", "this is not an event cursor; pass the text of `event.cursor`")
    return body


def _check(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()[:4]
