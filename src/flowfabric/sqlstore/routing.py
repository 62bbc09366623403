"""Lanes, routes, grants, keys and due times in SQL."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from flowfabric.core.records import Grant, Route
from flowfabric.core.trimming import EventKeeping
from flowfabric.core.views import Backlog, Tally
from flowfabric.sqlstore import rows
from flowfabric.sqlstore.session import Session
from flowfabric.store.routing import LaneState
from flowfabric.store.transaction import Look, Question


class SqlLanes:
    """The state of lanes."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def put(self, namespace: str, lane: str, state: LaneState, now: datetime) -> bool:
        if state is LaneState.ACTIVE and await self.state(namespace, lane) is LaneState.ACTIVE:
            return False
        return bool(await self._session.fetch("set_lane", namespace=namespace, lane=lane, state=state, now=now))

    async def state(self, namespace: str, lane: str) -> LaneState:
        found = await self._session.fetch("lane_state", namespace=namespace, lane=lane)
        return LaneState(found[0]["state"]) if found else LaneState.ACTIVE

    async def all(self, namespace: str) -> dict[str, LaneState]:
        found = await self._session.fetch("list_lanes", namespace=namespace)
        return {row["lane"]: LaneState(row["state"]) for row in found}


class SqlRoutes:
    """Routes by their id."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def ensure(self, route: Route) -> int:
        digest = route.digest()
        found = await self._session.fetch("route_id", digest=digest)
        if not found:
            await self._session.fetch(
                "add_route", namespace=route.namespace, lane=route.lane, kind=route.kind,
                requires=list(route.requires), digest=digest,
            )  # fmt: skip
            found = await self._session.fetch("route_id", digest=digest)
        return int(found[0]["id"])

    async def requires(self, route_id: int) -> tuple[str, ...]:
        [row] = await self._session.fetch("route_requires", id=route_id)
        return _words(row["requires"])

    async def backlog(self, namespace: str, most: int) -> list[Backlog]:
        found = await self._session.fetch("backlog", namespace=namespace, limit=most + 1)
        return [
            Backlog(
                lane=row["lane"], kind=row["kind"], requires=_words(row["requires"]),
                waiting=Tally(min(row["waiting"], most), exact=row["waiting"] <= most),
            )
            for row in found
            if row["waiting"]
        ]  # fmt: skip

    async def forget(self, namespace: str) -> None:
        await self._session.fetch("forget_routes", namespace=namespace)


def _words(value: Any) -> tuple[str, ...]:
    return tuple(json.loads(value) if isinstance(value, str) else value)


class SqlGrants:
    """Grants for hand-offs."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def add(self, grant: Grant) -> None:
        await self._session.fetch(
            "add_grant", id=grant.id, execution_id=grant.execution_id, worker=grant.worker.name,
            instance=grant.worker.instance, granted_at=grant.granted_at, expires_at=grant.expires_at,
        )  # fmt: skip

    async def get(self, id_: UUID) -> Grant | None:
        found = await self._session.fetch("get_grant", id=id_)
        return rows.grant(found[0]) if found else None

    async def open(self, execution_id: UUID, now: datetime) -> Grant | None:
        found = await self._session.fetch("open_grants", execution_id=execution_id, now=now)
        return rows.grant(found[0]) if found else None

    async def end(self, execution_id: UUID) -> None:
        await self._session.fetch("end_grants", execution_id=execution_id)

    async def consume(self, id_: UUID, lease_id: UUID) -> bool:
        return bool(await self._session.fetch("consume_grant", id=id_, lease_id=lease_id))


class SqlKeys:
    """Idempotency keys of submissions."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def take(
        self, namespace: str, key: str, execution_id: UUID, fingerprint: bytes, window: timedelta
    ) -> tuple[UUID, bytes] | None:
        now = await self._session.now()
        taken = await self._session.fetch(
            "take_key", namespace=namespace, key=key, execution_id=execution_id, fingerprint=fingerprint, now=now,
            expires_at=now + window,
        )  # fmt: skip
        if not taken:
            [holder] = await self._session.fetch("key_holder", namespace=namespace, key=key)
            return rows.identity(holder["execution_id"]), holder["fingerprint"]
        later = await self._session.now()
        if later > now:
            # Somebody else's transaction may have been waited for, and the window begins after that.
            await self._session.fetch("extend_key", namespace=namespace, key=key, expires_at=later + window)
        return None

    async def expired(self, now: datetime, limit: int) -> list[tuple[str, str]]:
        found = await self._session.fetch("expired_keys", now=now, limit=limit)
        return [(row["namespace"], row["key"]) for row in found]

    async def drop_expired(self, keys: Sequence[tuple[str, str]], now: datetime) -> int:
        items = [{"namespace": namespace, "key": key, "now": now} for namespace, key in keys]
        return len(await self._session.fetch_each("drop_key", items))


class SqlDue:
    """What is due, and when the next thing is."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def ids(self, duty: str, now: datetime, limit: int) -> list[UUID]:
        found = await self._session.fetch(f"due_for_{duty}", now=now, limit=limit)
        return list(dict.fromkeys(rows.identity(row["id"]) for row in found))

    async def look(self, question: Question) -> Look:
        keeping = question.keeping
        [row] = await self._session.fetch(
            "next_due", after=question.after, events_after=question.after - keeping.retention,
            subscribers_after=question.after - keeping.subscriber_expiry,
            namespaces=sorted({namespace for namespace, _ in question.lanes}),
            lanes=sorted({lane for _, lane in question.lanes}), capabilities=sorted(question.capabilities),
            now=self._session.bound_now,
        )  # fmt: skip
        others = ("now", "work")
        found = {name: rows.when(row[name]) for name in row.keys() if name not in others}  # noqa: SIM118 - see a row
        return Look(rows.when(row["now"]), _due(found, keeping), bool(row["work"]))


def _due(found: Mapping[str, Any], keeping: EventKeeping) -> dict[str, datetime | None]:
    """The due times by duty; some duties look after more than one thing."""
    later = {"events_apart": keeping.retention, "silent_subscribers": keeping.subscriber_expiry}
    due: dict[str, datetime | None] = {}
    for name, time in found.items():
        duty = _ALSO_DUE.get(name, name)
        times = [due.get(duty), None if time is None else time + later.get(name, timedelta(0))]
        due[duty] = min((time for time in times if time is not None), default=None)
    return due


_ALSO_DUE = {
    "submission_keys": "retention", "events_apart": "event_trimming", "silent_subscribers": "event_trimming",
}  # fmt: skip
