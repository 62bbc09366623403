"""Pages of flows and of their members."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any
from uuid import UUID

from flowfabric.core import limits
from flowfabric.core.flow_outcomes import FlowPage
from flowfabric.core.flows import FlowState
from flowfabric.core.requests import choice
from flowfabric.core.views import Page
from flowfabric.engine.context import Context
from flowfabric.engine.listing import LAST_ID, make_cursor, open_cursor, query_digest
from flowfabric.ops.flow_reading import FlowListing, list_flows, members

_FIRST_ID = UUID(int=0)


async def flows_page(context: Context, filters: Mapping[str, Any], limit: object, cursor: object) -> FlowPage:
    """One page of flows; a cursor of another query or namespace is refused."""
    checked = _checked(filters)
    size = limits.whole(limit, "limit", 1, limits.BATCH)
    query = query_digest(context.namespace, {"flows": True, **checked})
    before = LAST_ID if cursor is None else open_cursor(cursor, query)
    listing = FlowListing(namespace=context.namespace, before=before, limit=size + 1, **checked)
    found = await context.store.read(lambda tx: list_flows(tx, listing))
    items = tuple(found[:size])
    return FlowPage(items, make_cursor(items[-1].id, query) if len(found) > size else None)


async def members_page(context: Context, flow_id: UUID, limit: object, cursor: object) -> Page:
    """One page of a flow's members."""
    size = limits.whole(limit, "limit", 1, limits.BATCH)
    query = query_digest(context.namespace, {"members": flow_id})
    after = _FIRST_ID if cursor is None else open_cursor(cursor, query)
    body = partial(members, namespace=context.namespace, flow_id=flow_id, after=after, limit=size + 1)
    found = await context.store.read(body)
    items = tuple(found[:size])
    return Page(items, make_cursor(items[-1].id, query) if len(found) > size else None)


def _checked(filters: Mapping[str, Any]) -> dict[str, Any]:
    checked: dict[str, Any] = {
        "state": None if filters["state"] is None else choice(FlowState, filters["state"], "state"),
        "name": None if filters["name"] is None else limits.name(filters["name"], "name"),
        "tags": None if filters["tags"] is None else limits.tags(filters["tags"]),
    }
    for name in ("created_from", "created_until"):
        checked[name] = None if filters[name] is None else limits.moment(filters[name], name)
    return checked
