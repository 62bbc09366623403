"""Execution rows in SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from flowfabric.core.records import Execution
from flowfabric.core.requests import Holds
from flowfabric.core.states import State
from flowfabric.sqlstore import rows
from flowfabric.sqlstore.session import Batch, Parameters, Row, Session
from flowfabric.store.executions import Listing


class SqlExecutions:
    """Reads, locks and saves execution rows."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._locked: dict[UUID, Execution] = {}

    async def get(self, namespace: str | None, ids: Sequence[UUID]) -> dict[UUID, Execution]:
        return _by_id(await self._session.fetch("get_executions", ids=list(ids), namespace=namespace))

    async def fingerprint(self, namespace: str, id_: UUID) -> bytes | None:
        found = await self._session.fetch("execution_fingerprint", id=id_, namespace=namespace)
        return found[0]["fingerprint"] if found else None

    async def lock(self, namespace: str | None, ids: Sequence[UUID]) -> dict[UUID, Execution]:
        return self._hold(await self._session.fetch("lock_executions", ids=list(ids), namespace=namespace))

    async def lock_free(self, ids: Sequence[UUID]) -> dict[UUID, Execution]:
        return self._hold(await self._session.fetch("lock_free_executions", ids=list(ids)))

    async def save(self, changes: Sequence[tuple[Execution, Execution]]) -> None:
        await self._session.write(*self.saves(changes))

    def saves(self, changes: Sequence[tuple[Execution, Execution]]) -> list[Batch]:
        """The rows that save executions, in batches in which the same columns have changed since they were locked."""
        groups: dict[tuple[str, ...], list[Parameters]] = {}
        for before, after in changes:
            row = rows.saved(self._locked.get(before.id, before), after)
            groups.setdefault(tuple(row), []).append(row)
            self._locked[after.id] = after
        return [("save_execution", group) for group in groups.values()]

    async def held(self, namespace: str, instance: str) -> list[Execution]:
        now = await self._session.now()
        found = await self._session.fetch("held_executions", namespace=namespace, instance=instance, now=now)
        return [rows.execution(row) for row in found]

    async def suspended(self, namespace: str, after: UUID, limit: int) -> list[Execution]:
        found = await self._session.fetch("suspended_executions", namespace=namespace, after=after, limit=limit)
        return [rows.execution(row) for row in found]

    async def held_for_operator(self, namespace: str, holds: Holds, after: UUID, limit: int) -> list[UUID]:
        found = await self._session.fetch(
            "held_for_operator", namespace=namespace, kind=holds.kind, reason=holds.reason, after=after, limit=limit
        )
        return [rows.identity(row["id"]) for row in found]

    async def page(self, listing: Listing) -> list[Execution]:
        found = await self._session.fetch(
            "list_executions", namespace=listing.namespace, states=list(listing.states), before=listing.before,
            limit=listing.limit, lane=listing.lane, kind=listing.kind, tags=rows.to_json(listing.tags),
            created_from=listing.created_from, created_until=listing.created_until,
        )  # fmt: skip
        return [rows.execution(row) for row in found]

    async def count(self, namespace: str, state: State, most: int) -> int:
        [row] = await self._session.fetch("count_in_state", namespace=namespace, state=state, limit=most)
        return int(row["count"])

    async def estimate(self, namespace: str, state: State) -> int:
        [row] = await self._session.fetch("estimate_in_state", namespace=namespace, state=state)
        return int(row["count"])

    async def set_tags(self, id_: UUID, tags: Mapping[str, str]) -> None:
        await self._session.fetch("set_tags", id=id_, tags=rows.to_json(tags))

    def _hold(self, found: Sequence[Row]) -> dict[UUID, Execution]:
        locked = _by_id(found)
        self._locked |= locked
        return locked


def _by_id(found: Sequence[Row]) -> dict[UUID, Execution]:
    executions = (rows.execution(row) for row in found)
    return {item.id: item for item in executions}
