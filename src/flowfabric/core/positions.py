"""Where a reader of events stands, and the cursor that says so outside of the store.

A position is a transaction id and an event id; on SQLite the first is always 0. Everything up to it has been read. A
cursor is a position with the store and the namespace that it belongs to, so that one of another place is refused rather
than read from a senseless point. It is not signed: whoever has one may read the namespace from the beginning anyhow.
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
_BYTES = 16 + 8 + 8 + 8 + 4
_LONGEST = 128


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in the order of events."""

    xid: int
    id: int


FIRST = Position(0, 0)


class Start(StrEnum):
    """Where a subscription begins that has no cursor."""

    NOW = "now"
    BEGINNING = "beginning"


@dataclass(frozen=True, slots=True)
class Place:
    """What a cursor belongs to."""

    store: UUID
    namespace: str

    @property
    def namespace_digest(self) -> bytes:
        """What of the namespace is in a cursor."""
        return hashlib.sha256(self.namespace.encode()).digest()[:8]


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a subscription begins, and what had been trimmed by then: that never concerns it."""

    place: Place
    position: Position
    trimmed: Position


def write_cursor(place: Place, position: Position) -> str:
    """The position as text that can be kept anywhere."""
    body = place.store.bytes + place.namespace_digest + position.xid.to_bytes(8) + position.id.to_bytes(8)
    return _PREFIX + base64.urlsafe_b64encode(body + _check(body)).decode().rstrip("=")


def check_cursor(cursor: object) -> str:
    """The text if it has the shape of a cursor; `cursor_invalid` otherwise."""
    _unpack(cursor)
    return str(cursor)


def read_cursor(cursor: object, place: Place) -> Position:
    """The position in a cursor of this place: `cursor_invalid` for other text, `cursor_foreign` for another place."""
    body = _unpack(cursor)
    if body[:16] != place.store.bytes:
        message = "the cursor comes from another store; begin without one, or connect to the store it was made by"
        raise InvalidRequest("cursor_foreign", message, belongs_to="another store")
    if body[16:24] != place.namespace_digest:
        message = f"the cursor comes from another namespace than {place.namespace!r}; use engine.within(…)"
        raise InvalidRequest("cursor_foreign", message, belongs_to="another namespace")
    return Position(int.from_bytes(body[24:32]), int.from_bytes(body[32:40]))


def require_kept(position: Position, trimmed: Position) -> Position:
    """The position, unless events after it may have been removed meanwhile; the beginning is that of what is kept."""
    if FIRST < position < trimmed:
        raise _expired("this cursor")
    return position


def require_in_time(position: Position, trimmed_before: Position, trimmed: Position) -> None:
    """Refuses to read on when events after the position have been removed since the last look."""
    if FIRST < position < trimmed and trimmed_before < trimmed:
        raise _expired("the last one that was read")


def _expired(place: str) -> Refused:
    message = (
        f"events after {place} have been removed; begin at 'now' or at the 'beginning' of what is kept, "
        "and subscribe with a name to have events kept for you"
    )
    return Refused("cursor_expired", message)


def _unpack(cursor: object) -> bytes:
    body = b""
    if isinstance(cursor, str) and cursor.startswith(_PREFIX) and len(cursor) <= _LONGEST:
        text = cursor.removeprefix(_PREFIX)
        try:
            body = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            body = b""
    if len(body) != _BYTES or _check(body[:-4]) != body[-4:]:
        raise InvalidRequest("cursor_invalid", "this is not a cursor of events; pass the text of `event.cursor` on")
    return body


def _check(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()[:4]
