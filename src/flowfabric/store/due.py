"""Due times of the reconcilers' duties."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from flowfabric.core.retention import EventRetention
from flowfabric.store.rows import to_datetime, to_uuid
from flowfabric.store.session import AggregateStore


@dataclass(frozen=True, slots=True, kw_only=True)
class DueQuery:
    """A query for due times after `after`, and for work that this process could claim."""

    after: datetime
    retention: EventRetention
    lanes: Collection[tuple[str, str]] = ()
    capabilities: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class DueReport:
    """The store's time, the earliest due time of every duty, and whether this process could claim work."""

    now: datetime
    due: Mapping[str, datetime | None]
    has_work: bool

    @property
    def overdue(self) -> set[str]:
        """The duties whose time has come."""
        return {name for name, time in self.due.items() if time is not None and time <= self.now}


class DueStore(AggregateStore):
    """Reads due executions, and the next due time of each duty."""

    async def list_due(self, duty: str, now: datetime, limit: int) -> list[UUID]:
        """Return the executions that are due for a duty, most overdue first, without locking them."""
        rows = await self._session.fetch(f"due_for_{duty}", now=now, limit=limit)
        return list(dict.fromkeys(to_uuid(row["id"]) for row in rows))

    async def read_report(self, query: DueQuery) -> DueReport:
        """Read the due times and whether there is work, by one statement."""
        retention = query.retention
        [row] = await self._session.fetch(
            "next_due",
            after=query.after,
            events_after=query.after - retention.retention,
            subscribers_after=query.after - retention.subscriber_expiry,
            namespaces=sorted({namespace for namespace, _ in query.lanes}),
            lanes=sorted({lane for _, lane in query.lanes}),
            capabilities=sorted(query.capabilities),
            now=self._session.bound_now,
        )
        duties = [name for name in row.keys() if name not in ("now", "work")]  # noqa: SIM118 - a sqlite3.Row needs keys()
        times = {name: to_datetime(row[name]) for name in duties}
        return DueReport(to_datetime(row["now"]), _merge_due_times(times, retention), bool(row["work"]))


def _merge_due_times(times: Mapping[str, Any], retention: EventRetention) -> dict[str, datetime | None]:
    """Return the due time of each duty, which is the earliest if several columns belong to one duty."""
    later = {"events_apart": retention.retention, "silent_subscribers": retention.subscriber_expiry}
    due: dict[str, datetime | None] = {}
    for name, time in times.items():
        duty = _DUTY_OF.get(name, name)
        candidates = [due.get(duty), None if time is None else time + later.get(name, timedelta(0))]
        due[duty] = min((candidate for candidate in candidates if candidate is not None), default=None)
    return due


_DUTY_OF = {
    "submission_keys": "retention", "events_apart": "event_trimming", "silent_subscribers": "event_trimming",
}  # fmt: skip
