"""Lanes and routes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from flowfabric.core.executions.records import Execution, Route
from flowfabric.core.executions.requests import AuditInfo
from flowfabric.core.executions.views import ApproximateCount, Backlog
from flowfabric.core.lanes import LaneInfo, LaneState
from flowfabric.store.rows import row_reader, to_names
from flowfabric.store.session import AggregateStore


class LaneStore(AggregateStore):
    """The state of lanes."""

    async def put(self, namespace: str, lane: str, state: LaneState, now: datetime, audit: AuditInfo) -> bool:
        """Set the state of a lane, and who set it. Return False if the lane already has that state."""
        if state is LaneState.ACTIVE and (await self.get(namespace, lane)).state is LaneState.ACTIVE:
            return False
        changed = await self._session.fetch(
            "set_lane",
            namespace=namespace,
            lane=lane,
            state=state,
            now=now,
            principal=audit.principal,
            reason=audit.reason,
        )
        return bool(changed)

    async def get(self, namespace: str, lane: str) -> LaneInfo:
        """Return a lane. A lane that was never changed is active."""
        rows = await self._session.fetch("get_lane", namespace=namespace, lane=lane)
        return _to_lane(rows[0]) if rows else LaneInfo(lane=lane)

    async def page(self, namespace: str, after: str, limit: int) -> list[LaneInfo]:
        """Return lanes that were used or changed and whose name sorts after `after`, sorted by name."""
        rows = await self._session.fetch("list_lanes", namespace=namespace, after=after, limit=limit)
        return [_to_lane(row) for row in rows]


_to_lane = row_reader(LaneInfo)


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
