"""Removing executions in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from flowfabric.core.purging import Remains
from flowfabric.sqlstore import rows
from flowfabric.sqlstore.session import Session

_BELONGINGS = (
    "delete_keys", "delete_attempts", "delete_steps", "delete_grants", "delete_signals", "delete_waitpoints",
    "delete_suspensions", "delete_executions",
)  # fmt: skip


class SqlPurging:
    """Locks and removes many executions by few statements."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def lock_free(self, ids: Sequence[UUID]) -> list[Remains]:
        found = await self._session.fetch("lock_remains", ids=list(ids))
        return [Remains(rows.identity(row["id"]), rows.when(row["purge_at"]), row["belongings"]) for row in found]

    async def remove(self, ids: Sequence[UUID], trim_at: datetime | None) -> None:
        if trim_at is not None:
            # It is the rows that are about to go that are noted.
            await self._session.fetch("bury_executions", ids=list(ids), trim_at=trim_at)
        await self._session.run_batches(beside=[(statement, {"ids": list(ids)}) for statement in _BELONGINGS])
