"""Events in order, named subscribers and trimming in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from flowfabric.core.positions import Position
from flowfabric.core.subscribing import EventFilter, EventPage, OutboxState, Subscriber
from flowfabric.core.trimming import Buried
from flowfabric.sqlstore import rows
from flowfabric.sqlstore.session import Row, Session


class SqlOutbox:
    """Reads events in order."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def read(self, wanted: EventFilter, after: Position, scan: int) -> EventPage:
        families = None if wanted.families is None else [str(family) for family in wanted.families]
        found = await self._session.fetch(
            "read_events", namespace=wanted.namespace, families=families, lane=wanted.lane, kind=wanted.kind,
            flow_id=wanted.flow_id, execution_id=wanted.execution_id, tags=rows.to_json(wanted.tags),
            after_xid=str(after.xid), after_id=after.id, scan=scan,
        )  # fmt: skip
        first = found[0]
        last = after if first["last_id"] is None else _position(first["last_xid"], first["last_id"])
        events = tuple(
            (_position(row["event_xid"], row["event_id"]), rows.event(row))
            for row in found
            if row["event_id"] is not None
        )
        return EventPage(events, last, bool(first["held_back"]), _position(first["trimmed_xid"], first["trimmed_id"]))

    async def state(self) -> OutboxState:
        [row] = await self._session.fetch("outbox_state")
        return OutboxState(
            rows.identity(row["id"]), _position(row["trimmed_xid"], row["trimmed_id"]),
            _position(row["horizon_xid"], row["horizon_id"]), rows.when(row["held_back_since"]),
            bool(row["from_elsewhere"]),
        )  # fmt: skip


class SqlSubscribers:
    """Named subscribers."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def add(self, namespace: str, name: str, position: Position, now: datetime) -> None:
        await self._session.fetch("add_subscriber", namespace=namespace, name=name, now=now, **_written(position))

    async def lock(self, namespace: str, name: str) -> Subscriber | None:
        found = await self._session.fetch("lock_subscriber", namespace=namespace, name=name)
        return _subscriber(found[0]) if found else None

    async def hold(self, namespace: str, name: str, holder: UUID, now: datetime, until: datetime) -> None:
        await self._session.fetch(
            "hold_subscriber", namespace=namespace, name=name, holder=holder, now=now, held_until=until
        )

    async def commit(self, namespace: str, name: str, holder: UUID, position: Position, until: datetime) -> bool:
        now = await self._session.now()
        written = await self._session.fetch(
            "commit_subscriber", namespace=namespace, name=name, holder=holder, now=now, held_until=until,
            **_written(position),
        )  # fmt: skip
        return bool(written)

    async def release(self, namespace: str, name: str, holder: UUID) -> None:
        await self._session.fetch("release_subscriber", namespace=namespace, name=name, holder=holder)

    async def forget(self, namespace: str, name: str) -> bool:
        return bool(await self._session.fetch("forget_subscriber", namespace=namespace, name=name))

    async def page(self, namespace: str, after: str, limit: int) -> list[Subscriber]:
        found = await self._session.fetch("list_subscribers", namespace=namespace, after=after, limit=limit)
        return [_subscriber(row) for row in found]

    async def expire(self, now: datetime, silent_since: datetime) -> list[tuple[str, str]]:
        found = await self._session.fetch("expire_subscribers", now=now, silent_since=silent_since)
        return [(row["namespace"], row["name"]) for row in found]


class SqlTrimming:
    """Finds and removes events that nobody waits for."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def lock_free(self, ids: Sequence[UUID], now: datetime) -> list[Buried]:
        found = await self._session.fetch("lock_free_buried", ids=list(ids), now=now)
        return [_buried(row) for row in found]

    async def slowest(self) -> Position | None:
        found = await self._session.fetch("slowest_subscriber")
        return _position(found[0]["event_xid"], found[0]["event_id"]) if found else None

    async def postpone(self, ids: Sequence[UUID], trim_at: datetime) -> None:
        await self._session.fetch("postpone_trimming", ids=list(ids), trim_at=trim_at)

    async def remove(self, up_to: Sequence[tuple[UUID, int]]) -> None:
        items = [{"execution_id": id_, "version": version} for id_, version in up_to]
        await self._session.fetch_each("delete_events_of", items)

    async def forget(self, ids: Sequence[UUID]) -> None:
        given = {"ids": list(ids)}
        await self._session.run_batches(beside=[("delete_all_events_of", given), ("unbury_executions", given)])

    async def apart(self, until: datetime, limit: int) -> list[Position]:
        found = await self._session.fetch("events_apart", until=until, limit=limit)
        return [_position(row["event_xid"], row["event_id"]) for row in found]

    async def remove_apart(self, positions: Sequence[Position]) -> None:
        await self._session.fetch_each("delete_event", [_written(position) for position in positions])

    async def note(self, position: Position) -> None:
        await self._session.fetch("note_trimmed", **_written(position))


def _position(xid: str | int, id_: int) -> Position:
    return Position(int(xid), id_)


def _written(position: Position) -> dict[str, object]:
    # A transaction id has 64 bits without a sign, which no integer of the database has, so it travels as text.
    return {"event_xid": str(position.xid), "event_id": position.id}


def _buried(row: Row) -> Buried:
    id_ = rows.identity(row["execution_id"])
    if row["event_id"] is None:
        return Buried(id_, None)
    return Buried(id_, _position(row["event_xid"], row["event_id"]), (row["first_version"], row["last_version"]))


def _subscriber(row: Row) -> Subscriber:
    return Subscriber(
        namespace=row["namespace"], name=row["name"], position=_position(row["event_xid"], row["event_id"]),
        holder=rows.identity(row["holder"]), held_until=rows.when(row["held_until"]),
        created_at=rows.when(row["created_at"]), seen_at=rows.when(row["seen_at"]),
        expired_at=rows.when(row["expired_at"]),
    )  # fmt: skip
