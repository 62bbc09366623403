"""Events, named subscribers and the removal of old events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from flowfabric.core.events.cursor import FIRST, CursorScope, Position
from flowfabric.core.events.subscribers import EventFilter, EventPage, OutboxState, Subscriber
from flowfabric.core.executions.records import Event
from flowfabric.core.retention import DeletedExecution
from flowfabric.store.rows import event_parameters, row_reader, to_datetime, to_event, to_json, to_uuid
from flowfabric.store.session import AggregateStore, Row


class EventStore(AggregateStore):
    """The history of executions, and the outbox that subscribers read."""

    async def append(self, events: Sequence[Event]) -> None:
        """Append events in the same transaction as the changes that they describe."""
        await self._session.write(("append_event", [event_parameters(event) for event in events]))
        self._hints.note_events(events)

    async def last_named(self, execution_id: UUID, family: str, name: str) -> Event | None:
        """Return the newest event of an execution with this name."""
        rows = await self._session.fetch("last_event_named", execution_id=execution_id, family=family, name=name)
        return to_event(rows[0]) if rows else None

    async def postponements(self, execution_id: UUID, limit: int) -> list[Event]:
        """Return the events of postponed runs and of holds of an execution, newest first."""
        rows = await self._session.fetch("postponements_of", execution_id=execution_id, limit=limit)
        return [to_event(row) for row in rows]

    async def history(self, namespace: str, execution_id: UUID, after: int, limit: int) -> list[Event]:
        """Return the events of an execution with a version above `after`, in order."""
        rows = await self._session.fetch(
            "history_of", namespace=namespace, execution_id=execution_id, after=after, limit=limit
        )
        return [to_event(row) for row in rows]

    async def read(self, event_filter: EventFilter, after: Position, scan: int) -> EventPage:
        """Return the matching events among the next `scan` events, by one statement."""
        families = None if event_filter.families is None else [str(family) for family in event_filter.families]
        rows = await self._session.fetch(
            "read_events",
            namespace=event_filter.namespace,
            families=families,
            lane=event_filter.lane,
            kind=event_filter.kind,
            flow_id=event_filter.flow_id,
            execution_id=event_filter.execution_id,
            tags=to_json(event_filter.tags),
            after_xid=str(after.xid),
            after_id=after.id,
            scan=scan,
        )
        if not rows:
            # The row of the store was removed, as test suites do.
            return EventPage((), after, False, FIRST, None, 0, False)
        first = rows[0]
        last = after if first["last_id"] is None else _to_position(first["last_xid"], first["last_id"])
        events = tuple(
            (_to_position(row["event_xid"], row["event_id"]), to_event(row))
            for row in rows
            if row["event_id"] is not None
        )
        return EventPage(
            events,
            last,
            bool(first["held_back"]),
            _to_position(first["trimmed_xid"], first["trimmed_id"]),
            to_uuid(first["store_id"]),
            first["era"],
            bool(first["is_current"]),
        )

    async def outbox_state(self) -> OutboxState | None:
        """Return the state of the event log, or None if the row of the store was removed."""
        rows = await self._session.fetch("outbox_state")
        return _to_outbox_state(rows[0]) if rows else None


class EraStore(AggregateStore):
    """The eras of event positions, and the position that the store knows to be read."""

    async def read(self) -> tuple[int, bool]:
        """Return the era, and whether the store is where it was last used."""
        rows = await self._session.fetch("read_era")
        return (rows[0]["era"], bool(rows[0]["is_current"])) if rows else (0, False)

    async def lock(self) -> None:
        """Lock the row of the store. Create the row if it was removed."""
        if not await self._session.fetch("lock_store"):
            # There is no row to lock, so other transactions must not add one either.
            await self._session.fetch("lock_store_table")
            await self._session.fetch("add_store")
            await self._session.fetch("lock_store")

    async def begin(self, number: int, start: Position, trimmed: Position, present: Position, now: datetime) -> None:
        """Begin an era at `start`, and return subscribers that are ahead of `present` to the start."""
        await self._session.fetch("add_era", era=number, now=now, **_position_parameters(start))
        await self._session.fetch(
            "set_era",
            era=number,
            trimmed_xid=str(trimmed.xid),
            trimmed_id=trimmed.id,
            **_position_parameters(start),
        )
        await self._session.fetch(
            "return_subscribers",
            present_xid=str(present.xid),
            present_id=present.id,
            **_position_parameters(start),
        )

    async def note_origin(self) -> None:
        """Store where the store is used."""
        await self._session.fetch("note_origin")

    async def earliest_start(self, era: int) -> Position | None:
        """Return the earliest start of all eras after `era`."""
        rows = await self._session.fetch("earliest_start", era=era)
        return _to_position(rows[0]["event_xid"], rows[0]["event_id"]) if rows else None

    async def note_known(self, scope: CursorScope, position: Position) -> None:
        """Store that subscribers have read up to this position, unless another era has begun."""
        await self._session.fetch("note_known", store=scope.store, era=scope.era, **_position_parameters(position))


class SubscriberStore(AggregateStore):
    """Named subscribers."""

    async def add(self, namespace: str, name: str, position: Position, now: datetime) -> None:
        """Add a subscriber at a position, unless the name exists."""
        await self._session.fetch(
            "add_subscriber", namespace=namespace, name=name, now=now, **_position_parameters(position)
        )

    async def lock(self, namespace: str, name: str) -> Subscriber | None:
        """Lock and return a subscriber."""
        rows = await self._session.fetch("lock_subscriber", namespace=namespace, name=name)
        return _to_subscriber(rows[0]) if rows else None

    async def hold(self, namespace: str, name: str, holder: UUID, now: datetime, until: datetime) -> None:
        """Assign a locked subscriber to a holder."""
        await self._session.fetch(
            "hold_subscriber", namespace=namespace, name=name, holder=holder, now=now, held_until=until
        )

    async def commit(self, scope: CursorScope, name: str, holder: UUID, position: Position, until: datetime) -> bool:
        """Advance a subscriber and extend its hold. Return False if `holder` lost it, or the store went back."""
        now = await self._session.now()
        rows = await self._session.fetch(
            "commit_subscriber",
            namespace=scope.namespace,
            store=scope.store,
            era=scope.era,
            name=name,
            holder=holder,
            now=now,
            held_until=until,
            **_position_parameters(position),
        )
        return bool(rows)

    async def release(self, namespace: str, name: str, holder: UUID) -> None:
        """Free a subscriber if `holder` still holds it."""
        await self._session.fetch("release_subscriber", namespace=namespace, name=name, holder=holder)

    async def remove(self, namespace: str, name: str) -> bool:
        """Remove a subscriber. Return False if it does not exist."""
        return bool(await self._session.fetch("forget_subscriber", namespace=namespace, name=name))

    async def page(self, namespace: str, after: str, limit: int) -> list[Subscriber]:
        """Return subscribers with a name above `after`, in order of their names."""
        rows = await self._session.fetch("list_subscribers", namespace=namespace, after=after, limit=limit)
        return [_to_subscriber(row) for row in rows]

    async def expire(self, now: datetime, silent_since: datetime) -> list[tuple[str, str]]:
        """Mark subscribers that have been silent since `silent_since` as expired. Return their namespaces and names."""
        rows = await self._session.fetch("expire_subscribers", now=now, silent_since=silent_since)
        return [(row["namespace"], row["name"]) for row in rows]


class TrimStore(AggregateStore):
    """Finds and removes events that no subscriber still needs."""

    async def lock_free(self, ids: Sequence[UUID], now: datetime) -> list[DeletedExecution]:
        """Lock and return removed executions whose events are old enough. Skip rows that others have locked."""
        rows = await self._session.fetch("lock_free_buried", ids=list(ids), now=now)
        return [_to_deleted_execution(row) for row in rows]

    async def slowest_position(self) -> Position | None:
        """Return the position of the slowest named subscriber, or None if there are no subscribers."""
        rows = await self._session.fetch("slowest_subscriber")
        return _to_position(rows[0]["event_xid"], rows[0]["event_id"]) if rows else None

    async def postpone(self, ids: Sequence[UUID], trim_at: datetime) -> None:
        """Set the time when the events of these removed executions are checked again."""
        await self._session.fetch("postpone_trimming", ids=list(ids), trim_at=trim_at)

    async def remove(self, up_to: Sequence[tuple[UUID, int]]) -> None:
        """Remove the events of each execution in `up_to`, up to and including the given version."""
        parameters = [{"execution_id": id_, "version": version} for id_, version in up_to]
        await self._session.fetch_each("delete_events_of", parameters)

    async def remove_all(self, ids: Sequence[UUID]) -> None:
        """Remove all events of removed executions, and the rows that remember these executions."""
        parameters = {"ids": list(ids)}
        await self._session.run_batches(
            beside=[("delete_all_events_of", parameters), ("unbury_executions", parameters)]
        )

    async def list_unattached(self, until: datetime, limit: int) -> list[Position]:
        """Return positions of events up to `until` that belong to no execution, oldest first."""
        rows = await self._session.fetch("events_apart", until=until, limit=limit)
        return [_to_position(row["event_xid"], row["event_id"]) for row in rows]

    async def remove_unattached(self, positions: Sequence[Position]) -> None:
        """Remove the events at these positions."""
        await self._session.fetch_each("delete_event", [_position_parameters(position) for position in positions])

    async def note_trimmed(self, position: Position) -> None:
        """Store that events up to this position may have been removed."""
        await self._session.fetch("note_trimmed", **_position_parameters(position))


def _to_outbox_state(row: Row) -> OutboxState:
    return OutboxState(
        to_uuid(row["id"]),
        _to_position(row["trimmed_xid"], row["trimmed_id"]),
        _to_position(row["horizon_xid"], row["horizon_id"]),
        to_datetime(row["held_back_since"]),
        bool(row["from_elsewhere"]),
        era=row["era"],
        known=_to_position(row["known_xid"], row["known_id"]),
        is_current=bool(row["is_current"]),
        is_new=bool(row["is_new"]),
        era_since=to_datetime(row["era_since"]),
    )


def _to_position(xid: str | int, id_: int) -> Position:
    return Position(int(xid), id_)


def _position_parameters(position: Position) -> dict[str, object]:
    # A transaction id is an unsigned 64-bit number. No integer type of the database has that range, so send it as text.
    return {"event_xid": str(position.xid), "event_id": position.id}


def _to_deleted_execution(row: Row) -> DeletedExecution:
    id_ = to_uuid(row["execution_id"])
    if row["event_id"] is None:
        return DeletedExecution(id_, None)
    return DeletedExecution(
        id_, _to_position(row["event_xid"], row["event_id"]), (row["first_version"], row["last_version"])
    )


_to_subscriber = row_reader(Subscriber, position=lambda row: _to_position(row["event_xid"], row["event_id"]))
