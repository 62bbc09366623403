"""Looking and writing where one transaction writes at a time: what was seen cannot be touched by anybody else."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from flowfabric.sqlstore import rows
from flowfabric.sqlstore.executions import SqlExecutions
from flowfabric.sqlstore.session import Batch, Session
from flowfabric.sqlstore.waiting import SqlWaits, wait_rows
from flowfabric.store.news import News
from flowfabric.store.transaction import Written
from flowfabric.store.unlocked import Seen
from flowfabric.store.waiting import Asked, Heard

_NOTHING = Heard({}, {})


class SqlUnlocked:
    """Reads by the ordinary statements; a backend with many writers replaces all of it."""

    def __init__(self, session: Session, executions: SqlExecutions, waits: SqlWaits, news: News) -> None:
        self._session = session
        self._executions = executions
        self._waits = waits
        self._news = news

    async def before_suspending(self, asked: Sequence[tuple[UUID, str | None]], *, minting: bool) -> Seen | None:
        found = await self._executions.lock_free([id_ for id_, _ in asked])
        if not found:
            return None
        linked = [(id_, key) for id_, key in asked if id_ in found and not found[id_].plain]
        named = [(id_, found[id_].generation, key) for id_, key in linked if key is not None]
        ids = [id_ for id_, _ in linked]
        waitpoints, suspensions, ring = await self._waits.before_suspending(ids, named, minting=minting)
        return Seen(
            now=await self._session.now(), executions=found, marks={}, waitpoints=waitpoints, suspensions=suspensions,
            heard=_NOTHING, ring=ring,
        )  # fmt: skip

    async def before_signalling(self, asked: Sequence[Asked]) -> Seen | None:
        ids = [item.execution_id for item in asked]
        found = await self._executions.lock_free(ids)
        if not found:
            return None
        waitpoints, suspensions, heard, ring = await self._waits.before_signalling(ids, asked)
        return Seen(
            now=await self._session.now(), executions=found, marks={}, waitpoints=waitpoints, suspensions=suspensions,
            heard=heard, ring=ring,
        )  # fmt: skip

    async def write(
        self, written: Written, seen: Seen, *, owned: Collection[UUID] = (), kid: str | None = None
    ) -> Collection[UUID]:
        await self._session.write(*self._batches(written))
        self._news.note_events(written.events)
        return {after.id for _, after in written.executions}

    def _batches(self, written: Written) -> list[Batch]:
        """All rows that are written, by statement."""
        assert not any(item.bound or item.unbound for item in written.waits), "these need a statement of their own"
        return [
            *self._executions.saves(written.executions),
            ("append_attempt", [rows.attempt_parameters(item) for item in written.attempts]),
            ("append_event", [rows.event_parameters(item) for item in written.events]),
            *wait_rows(written.waits),
        ]
