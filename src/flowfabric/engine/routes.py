"""The routes of submissions, remembered once they are committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from functools import partial
from typing import Any

from flowfabric.core.records import Route
from flowfabric.core.requests import Submission
from flowfabric.engine.context import Context
from flowfabric.ops.routes import ensure_routes

_MOST_ROUTES = 10_000


def known_route_ids(context: Context, submissions: Sequence[Submission]) -> list[int | None]:
    """The id of each route that is remembered, for operations that make the others themselves."""
    return [context.routes.get(route) for route in _routes(context, submissions)]


async def route_ids(context: Context, submissions: Sequence[Submission]) -> list[int]:
    """The id of the route of each submission, in their order."""
    routes = _routes(context, submissions)
    known = {route: context.routes[route] for route in routes if route in context.routes}
    unknown = [Route(*route) for route in dict.fromkeys(routes) if route not in known]
    if unknown:
        # A route must be committed before it is remembered, so it is made in a transaction of its own.
        made = await context.store.run(partial(ensure_routes, routes=unknown))
        known |= remember_routes(context, made)
    return [known[route] for route in routes]


def remember_routes(context: Context, made: Mapping[Route, int]) -> dict[tuple[Any, ...], int]:
    """Remembers routes that are committed; answers them as they are remembered."""
    if len(context.routes) > _MOST_ROUTES:
        context.routes.clear()
    known = {astuple(route): id_ for route, id_ in made.items()}
    context.routes.update(known)
    return known


def _routes(context: Context, submissions: Sequence[Submission]) -> list[tuple[Any, ...]]:
    return [(context.namespace, item.lane, item.kind, tuple(item.requires)) for item in submissions]
