"""Looking without a lock and writing by one guarded statement: two round trips, and no transaction around them."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any
from uuid import UUID

from flowfabric.backends.postgres.session import PostgresSession
from flowfabric.core.records import Execution
from flowfabric.sqlstore import rows
from flowfabric.sqlstore.session import Row
from flowfabric.sqlstore.unlocked import SqlUnlocked
from flowfabric.sqlstore.waiting import heard_of, ring_of, suspension_of, waitpoint_of
from flowfabric.store.transaction import Written
from flowfabric.store.unlocked import Seen
from flowfabric.store.waiting import Asked


class PostgresUnlocked(SqlUnlocked):
    """The same with many writers: a row that was touched since it was seen is not written."""

    async def before_suspending(self, asked: Sequence[tuple[UUID, str | None]], *, minting: bool) -> Seen | None:
        items = [{"id": id_, "key": key} for id_, key in asked]
        found = await self._session.fetch_batch("seen_before_suspending", items)
        return self._seen(found, ())

    async def before_signalling(self, asked: Sequence[Asked]) -> Seen | None:
        items = [
            {"execution_id": item.execution_id, "id": item.id, "waitpoint_id": item.waitpoint_id, "key": item.key}
            for item in asked
        ]
        found = await self._session.fetch_batch("seen_before_signalling", items)
        return self._seen(found, asked)

    async def write(
        self, written: Written, seen: Seen, *, owned: Collection[UUID] = (), kid: str | None = None
    ) -> Collection[UUID]:
        assert isinstance(self._session, PostgresSession), "this is how PostgreSQL does it"
        marks = [
            {"id": after.id, "mark": seen.marks[after.id], "owned": after.id in owned}
            for _, after in written.executions
        ]
        held = await self._session.write_held(marks, kid, *self._batches(written))
        self._news.note_events([event for event in written.events if event.execution_id in held])
        return held

    def _seen(self, found: Sequence[Row], asked: Sequence[Asked]) -> Seen | None:
        if not found:
            return None
        executions: dict[UUID, Execution] = {row["id"]: rows.execution(row) for row in found}
        hanging = [(row["id"], _read(row["waitpoints"]), _read(row["suspensions"])) for row in found]
        signals = list(chain.from_iterable(_read(row["signals"]) for row in found)) if asked else []
        return Seen(
            now=self._session.bound_now or found[-1]["now"],
            executions=executions,
            marks={row["id"]: row["mark"] for row in found},
            waitpoints={id_: [waitpoint_of(item) for item in waitpoints] for id_, waitpoints, _ in hanging},
            suspensions={id_: suspension_of(items[0]) for id_, _, items in hanging if items},
            heard=heard_of(signals, asked),
            ring=ring_of(_read(found[0]["ring"])),
        )


def _read(document: str | None) -> list[Any]:
    return json.loads(document) if document else []
