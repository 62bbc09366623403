"""Cursors of pages. A cursor contains the key of the last item, and is valid only for the query that returned it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar
from uuid import UUID

from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest

FIRST_ID = UUID(int=0)
LAST_ID = UUID(int=2**128 - 1)
_DIGEST_BYTES = 8
Item = TypeVar("Item")
Item_co = TypeVar("Item_co", covariant=True)


class AnyPage(Protocol[Item_co]):
    """One page of a list."""

    @property
    def items(self) -> tuple[Item_co, ...]: ...

    @property
    def next_cursor(self) -> str | None: ...


async def read_all(fetch: Callable[[str | None], Awaitable[AnyPage[Item_co]]]) -> list[Item_co]:
    """Return the items of all pages. `fetch` returns the page that follows a cursor."""
    page = await fetch(None)
    items = list(page.items)
    while page.next_cursor is not None:
        page = await fetch(page.next_cursor)
        items += page.items
    return items


def query_digest(namespace: str, filters: Mapping[str, Any]) -> str:
    """Return a digest that identifies a query."""
    document = json.dumps([namespace, filters], default=str, sort_keys=True)
    return hashlib.sha256(document.encode()).hexdigest()[: 2 * _DIGEST_BYTES]


def id_after(id_: UUID) -> UUID:
    """Return the id that follows this one. `LAST_ID` is reserved, so no object has it."""
    return UUID(int=min(id_.int + 1, LAST_ID.int))


def make_cursor(last: UUID | str, query: str) -> str:
    """Return the cursor for the page that follows the item with this id or name."""
    key = last.bytes if isinstance(last, UUID) else last.encode()
    return base64.urlsafe_b64encode(key + bytes.fromhex(query)).decode()


def cut_page(
    found: Sequence[Item], size: int, query: str, key: Callable[[Item], UUID | str]
) -> tuple[tuple[Item, ...], str | None]:
    """Return the items of a page and the cursor of the next one. `found` has one item more if there is a next page."""
    return tuple(found[:size]), make_cursor(key(found[size - 1]), query) if len(found) > size else None


def open_cursor(cursor: object, query: str) -> UUID:
    """Return the id after which the next page starts. Refuse a cursor from a different query."""
    key = _open(cursor, query)
    if len(key) != 16:
        raise _invalid_cursor()
    return UUID(bytes=key)


def open_name_cursor(cursor: object, query: str) -> str:
    """Return the name after which the next page starts. Refuse a cursor from a different query."""
    try:
        return validation.name(_open(cursor, query).decode(), "cursor")
    except (UnicodeDecodeError, InvalidRequest):
        raise _invalid_cursor() from None


def _open(cursor: object, query: str) -> bytes:
    try:
        data = base64.b64decode(cursor, altchars=b"-_", validate=True) if isinstance(cursor, str) else b""
    except (binascii.Error, ValueError):
        data = b""
    if data[-_DIGEST_BYTES:].hex() != query:
        raise _invalid_cursor()
    return data[:-_DIGEST_BYTES]


def _invalid_cursor() -> InvalidRequest:
    message = "the cursor does not belong to this query; start without one, or keep the filters unchanged"
    return InvalidRequest("cursor_invalid", message)
