"""Pages of executions: checked filters, and cursors that only fit the query they came from."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from flowfabric.core import limits
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.requests import choice
from flowfabric.core.states import State
from flowfabric.core.views import Page
from flowfabric.engine.context import Context
from flowfabric.ops.reading import list_executions
from flowfabric.store.executions import Listing

LAST_ID = UUID(int=2**128 - 1)


async def listing_page(context: Context, filters: Mapping[str, Any], limit: object, cursor: object) -> Page:
    """One page; a cursor of another query or namespace is refused."""
    checked = _checked(filters)
    size = limits.whole(limit, "limit", 1, limits.BATCH)
    query = query_digest(context.namespace, checked)
    before = LAST_ID if cursor is None else open_cursor(cursor, query)
    listing = Listing(namespace=context.namespace, before=before, limit=size + 1, **checked)
    found = await context.store.read(lambda tx: list_executions(tx, listing))
    items = tuple(found[:size])
    more = len(found) > size
    return Page(items, make_cursor(items[-1].id, query) if more else None)


def _checked(filters: Mapping[str, Any]) -> dict[str, Any]:
    state = filters["state"]
    checked: dict[str, Any] = {"states": tuple(State) if state is None else (choice(State, state, "state"),)}
    for name in ("lane", "kind"):
        checked[name] = None if filters[name] is None else limits.name(filters[name], name)
    for name in ("created_from", "created_until"):
        checked[name] = None if filters[name] is None else limits.moment(filters[name], name)
    checked["tags"] = None if filters["tags"] is None else limits.tags(filters["tags"])
    return checked


def query_digest(namespace: str, checked: Mapping[str, Any]) -> str:
    """What tells queries apart."""
    return hashlib.sha256(json.dumps([namespace, checked], default=str, sort_keys=True).encode()).hexdigest()[:16]


def make_cursor(last: UUID, query: str) -> str:
    """The cursor behind the last item of a page."""
    return base64.urlsafe_b64encode(last.bytes + bytes.fromhex(query)).decode()


def open_cursor(cursor: object, query: str) -> UUID:
    """Where a cursor of this query goes on."""
    try:
        data = base64.b64decode(cursor, altchars=b"-_", validate=True) if isinstance(cursor, str) else b""
    except (binascii.Error, ValueError):
        data = b""
    if len(data) != 24 or data[16:].hex() != query:
        message = "the cursor does not belong to this query; start again without one, or keep the filters as they were"
        raise InvalidRequest("cursor_invalid", message)
    return UUID(bytes=data[:16])
