"""Registered workers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from flowfabric.core.executions.records import WorkerId
from flowfabric.core.workers import WorkerInfo
from flowfabric.store.rows import parameters_of, row_reader, to_datetime, to_microseconds, to_names
from flowfabric.store.session import AggregateStore


class WorkerStore(AggregateStore):
    """Worker instances as they registered themselves."""

    async def lock(self, namespace: str, instance: str) -> WorkerInfo | None:
        """Lock and return a worker."""
        rows = await self._session.fetch("lock_worker", namespace=namespace, instance=instance)
        return _to_worker(rows[0]) if rows else None

    async def add(self, worker: WorkerInfo) -> bool:
        """Add a worker. Return False if the instance exists."""
        return bool(await self._session.fetch("add_worker", **_parameters(worker)))

    async def change(self, worker: WorkerInfo) -> None:
        """Replace the record of a locked worker."""
        await self._session.fetch("change_worker", **_parameters(worker))

    async def beat(self, namespace: str, instance: str, busy: int) -> datetime | None:
        """Extend the registration of a worker. Return the new expiry, or None if the registration has expired."""
        rows = await self._session.fetch(
            "beat_worker", namespace=namespace, instance=instance, busy=busy, now=self._session.bound_now
        )
        return to_datetime(rows[0]["expires_at"]) if rows else None

    async def remove(self, namespace: str, instance: str) -> None:
        """Remove a worker."""
        await self._session.fetch("remove_worker", namespace=namespace, instance=instance)

    async def page(
        self, namespace: str, lane: str | None, now: datetime, limit: int, *, after: str = ""
    ) -> list[WorkerInfo]:
        """Return live workers of one lane or of all lanes whose instance sorts after `after`, in order of instance."""
        rows = await self._session.fetch(
            "list_workers", namespace=namespace, lane=lane, now=now, after=after, limit=limit
        )
        return [_to_worker(row) for row in rows]

    async def list_lapsed(self, now: datetime, limit: int) -> list[tuple[str, str]]:
        """Return namespaces and instances of expired workers, longest silent first, without locking them."""
        rows = await self._session.fetch("lapsed_workers", now=now, limit=limit)
        return [(row["namespace"], row["instance"]) for row in rows]

    async def remove_lapsed(self, instances: Sequence[tuple[str, str]], now: datetime) -> list[WorkerInfo]:
        """Remove those of `instances` that are expired and not locked. Return the removed workers."""
        parameters = [{"namespace": namespace, "instance": instance, "now": now} for namespace, instance in instances]
        removed = [_to_worker(row) for row in await self._session.fetch_each("lock_lapsed_worker", parameters)]
        names = [{"namespace": worker.namespace, "instance": worker.id.instance} for worker in removed]
        await self._session.fetch_each("remove_worker", names)
        return removed


def _parameters(worker: WorkerInfo) -> dict[str, object]:
    return _columns(worker) | {
        "instance": worker.id.instance,
        "name": worker.id.name,
        "lanes": list(worker.lanes),
        "capabilities": list(worker.capabilities),
        "kinds": None if worker.kinds is None else list(worker.kinds),
        "ttl_us": to_microseconds(worker.ttl),
    }


_columns = parameters_of(WorkerInfo, without=["id", "lanes", "capabilities", "kinds", "ttl"])
_to_worker = row_reader(
    WorkerInfo,
    id=lambda row: WorkerId(row["name"], row["instance"]),
    ttl="ttl_us",
    kinds=lambda row: None if row["kinds"] is None else to_names(row["kinds"]),
)
