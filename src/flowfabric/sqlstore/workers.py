"""The register of workers in SQL."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from flowfabric.core.records import WorkerId
from flowfabric.core.workers import Worker
from flowfabric.sqlstore import rows
from flowfabric.sqlstore.session import Row, Session


class SqlWorkers:
    """Worker instances as they have registered themselves."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def lock(self, namespace: str, instance: str) -> Worker | None:
        found = await self._session.fetch("lock_worker", namespace=namespace, instance=instance)
        return _worker(found[0]) if found else None

    async def add(self, worker: Worker) -> bool:
        return bool(await self._session.fetch("add_worker", **_columns(worker)))

    async def change(self, worker: Worker) -> None:
        await self._session.fetch("change_worker", **_columns(worker))

    async def beat(self, namespace: str, instance: str, busy: int) -> datetime | None:
        found = await self._session.fetch(
            "beat_worker", namespace=namespace, instance=instance, busy=busy, now=self._session.bound_now
        )
        return rows.when(found[0]["expires_at"]) if found else None

    async def remove(self, namespace: str, instance: str) -> None:
        await self._session.fetch("remove_worker", namespace=namespace, instance=instance)

    async def page(self, namespace: str, after: str, limit: int) -> list[Worker]:
        found = await self._session.fetch("list_workers", namespace=namespace, after=after, limit=limit)
        return [_worker(row) for row in found]

    async def on_lane(self, namespace: str, lane: str, now: datetime, limit: int) -> list[Worker]:
        found = await self._session.fetch("workers_on_lane", namespace=namespace, lane=lane, now=now, limit=limit)
        return [_worker(row) for row in found]

    async def lapsed(self, now: datetime, limit: int) -> list[tuple[str, str]]:
        found = await self._session.fetch("lapsed_workers", now=now, limit=limit)
        return [(row["namespace"], row["instance"]) for row in found]

    async def remove_lapsed(self, instances: Sequence[tuple[str, str]], now: datetime) -> list[Worker]:
        items = [{"namespace": namespace, "instance": instance, "now": now} for namespace, instance in instances]
        gone = [_worker(row) for row in await self._session.fetch_each("lock_lapsed_worker", items)]
        names = [{"namespace": worker.namespace, "instance": worker.id.instance} for worker in gone]
        await self._session.fetch_each("remove_worker", names)
        return gone


def _columns(worker: Worker) -> dict[str, object]:
    return {
        "namespace": worker.namespace, "instance": worker.id.instance, "name": worker.id.name,
        "lanes": list(worker.lanes), "capabilities": list(worker.capabilities), "version": worker.version,
        "host": worker.host, "slots": worker.slots, "busy": worker.busy, "ttl_us": rows.micros(worker.ttl),
        "registered_at": worker.registered_at, "seen_at": worker.seen_at, "expires_at": worker.expires_at,
        "kinds": None if worker.kinds is None else list(worker.kinds),
    }  # fmt: skip


def _worker(row: Row) -> Worker:
    return Worker(
        namespace=row["namespace"], id=WorkerId(row["name"], row["instance"]), lanes=_words(row["lanes"]),
        capabilities=_words(row["capabilities"]), version=row["version"], host=row["host"], slots=row["slots"],
        busy=row["busy"], ttl=timedelta(microseconds=row["ttl_us"]), registered_at=rows.when(row["registered_at"]),
        seen_at=rows.when(row["seen_at"]), expires_at=rows.when(row["expires_at"]),
        kinds=None if row["kinds"] is None else _words(row["kinds"]),
    )  # fmt: skip


def _words(value: Any) -> tuple[str, ...]:
    return tuple(json.loads(value) if isinstance(value, str) else value)
