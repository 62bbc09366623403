"""Lanes and routes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from flowfabric.core.executions.records import Execution, Route
from flowfabric.core.executions.views import ApproximateCount, Backlog
from flowfabric.store.records import LaneState
from flowfabric.store.rows import to_names
from flowfabric.store.session import AggregateStore


class LaneStore(AggregateStore):
    """The state of lanes."""

    async def put(self, namespace: str, lane: str, state: LaneState, now: datetime) -> bool:
        """Set the state of a lane. Return False if the lane already has that state."""
        if state is LaneState.ACTIVE and await self.state(namespace, lane) is LaneState.ACTIVE:
            return False
        return bool(await self._session.fetch("set_lane", namespace=namespace, lane=lane, state=state, now=now))

    async def state(self, namespace: str, lane: str) -> LaneState:
        """Return the state of a lane."""
        rows = await self._session.fetch("lane_state", namespace=namespace, lane=lane)
        return LaneState(rows[0]["state"]) if rows else LaneState.ACTIVE

    async def all(self, namespace: str) -> dict[str, LaneState]:
        """Return the state of every lane that was used or changed, by name."""
        rows = await self._session.fetch("list_lanes", namespace=namespace)
        return {row["lane"]: LaneState(row["state"]) for row in rows}


class RouteStore(AggregateStore):
    """Routes. A route is a combination of namespace, lane, kind and required capabilities."""

    async def ensure(self, routes: Iterable[Route]) -> None:
        """Create the routes that do not exist yet. Other transactions wait for a new route in the order of the ids."""
        await self._session.fetch_each(
            "add_route",
            [
                {
                    "id": route.id,
                    "namespace": route.namespace,
                    "lane": route.lane,
                    "kind": route.kind,
                    "requires": list(route.requires),
                    "digest": route.digest,
                }
                for route in sorted(set(routes), key=lambda route: route.id)
            ],
        )

    async def requires(self, execution: Execution) -> tuple[str, ...] | None:
        """Return the capabilities that the execution's route requires, or None if it does not have its own route."""
        rows = await self._session.fetch(
            "route_requires",
            id=execution.route_id,
            namespace=execution.namespace,
            lane=execution.lane,
            kind=execution.kind,
        )
        return to_names(rows[0]["requires"]) if rows else None

    async def restore(self, execution: Execution) -> None:
        """Create the route of a stored execution if it is missing and requires no capability.

        The execution has only the id of its route. The id shows whether capabilities were required, but not which.
        """
        route = Route(execution.namespace, execution.lane, execution.kind, ())
        if route.id == execution.route_id and await self.requires(execution) is None:
            await self.ensure([route])

    async def backlog(self, namespace: str, limit: int) -> list[Backlog]:
        """Count waiting executions by lane, kind and required capabilities, each up to `limit`."""
        rows = await self._session.fetch("backlog", namespace=namespace, limit=limit + 1)
        return [
            Backlog(
                lane=row["lane"],
                kind=row["kind"],
                requires=to_names(row["requires"]),
                waiting=ApproximateCount(min(row["waiting"], limit), is_exact=row["waiting"] <= limit),
            )
            for row in rows
            if row["waiting"]
        ]

    async def remove_unused(self, namespace: str) -> None:
        """Remove the unused routes of a namespace."""
        await self._session.fetch("forget_routes", namespace=namespace)
