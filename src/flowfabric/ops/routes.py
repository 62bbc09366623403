"""Making sure that a route exists before executions are submitted along it."""

from __future__ import annotations

from collections.abc import Sequence

from flowfabric.core.records import Route
from flowfabric.store.transaction import Transaction


async def ensure_routes(tx: Transaction, routes: Sequence[Route]) -> dict[Route, int]:
    """The id of each route."""
    return {route: await tx.routes.ensure(route) for route in routes}
