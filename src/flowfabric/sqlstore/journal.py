"""Attempts, steps and events in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from flowfabric.core.records import Attempt, Event, Execution, RecordedStep
from flowfabric.core.requests import Step
from flowfabric.sqlstore import rows
from flowfabric.sqlstore.session import Session
from flowfabric.store.news import News


class SqlAttempts:
    """Ended attempts."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def append(self, attempts: Sequence[Attempt]) -> None:
        await self._session.write(("append_attempt", [rows.attempt_parameters(item) for item in attempts]))

    async def of(self, execution_id: UUID) -> list[Attempt]:
        return [rows.attempt(row) for row in await self._session.fetch("attempts_of", execution_id=execution_id)]

    async def at(self, execution_id: UUID, attempt_index: int) -> Attempt | None:
        found = await self._session.fetch("attempt_at", execution_id=execution_id, attempt_index=attempt_index)
        return rows.attempt(found[0]) if found else None


class SqlSteps:
    """The journal of steps."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def record(self, entries: Sequence[tuple[Execution, Sequence[Step]]], now: datetime) -> set[tuple[UUID, str]]:
        items = [
            {
                "execution_id": execution.id,
                "seq": seq,
                "name": step.name,
                "status": step.status,
                "payload": step.payload,
            }
            | {"encoding": step.encoding, "digest": step.digest(), "attempt_index": execution.attempt_index}
            | {"generation": execution.generation, "recorded_at": now}
            for execution, steps in entries
            for seq, step in enumerate(steps, start=execution.step_seq + 1)
        ]
        found = await self._session.fetch_each("record_step", items)
        return {(rows.identity(row["execution_id"]), row["name"]) for row in found}

    async def count(self, execution_id: UUID) -> int:
        [row] = await self._session.fetch("count_steps", execution_id=execution_id)
        return int(row["count"])

    async def of(self, execution_id: UUID, after: int, limit: int) -> list[RecordedStep]:
        found = await self._session.fetch("steps_of", execution_id=execution_id, after=after, limit=limit)
        return [rows.step(row) for row in found]

    async def named(self, execution_id: UUID, name: str) -> RecordedStep | None:
        found = await self._session.fetch("step_named", execution_id=execution_id, name=name)
        return rows.step(found[0]) if found else None

    async def clear(self, execution_id: UUID) -> None:
        await self._session.fetch("delete_steps", ids=[execution_id])

    async def strike(self, execution_id: UUID, seq: int, generation: int) -> None:
        await self._session.fetch("strike_steps", execution_id=execution_id, seq=seq, generation=generation)


class SqlEvents:
    """History and outbox."""

    def __init__(self, session: Session, news: News) -> None:
        self._session = session
        self._news = news

    async def append(self, events: Sequence[Event]) -> None:
        await self._session.write(("append_event", [rows.event_parameters(item) for item in events]))
        self._news.note_events(events)

    async def last_named(self, execution_id: UUID, family: str, name: str) -> Event | None:
        found = await self._session.fetch("last_event_named", execution_id=execution_id, family=family, name=name)
        return rows.event(found[0]) if found else None

    async def history(self, namespace: str, execution_id: UUID, after: int, limit: int) -> list[Event]:
        found = await self._session.fetch(
            "history_of", namespace=namespace, execution_id=execution_id, after=after, limit=limit
        )
        return [rows.event(row) for row in found]
