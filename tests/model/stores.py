"""The two stores that run beside the reference model, each with an engine and access to its raw rows.

Stores generate their own ids for executions, leases, grants and suspensions. A side, which is a store with its engine,
gives each id a symbol when the id first appears in an outcome. The order of appearance is the same for both stores and
the model. Unlike ids, symbols can therefore be compared and passed to every side. Waitpoints may be stored long before
they are returned. The symbol of a waitpoint is therefore derived from its execution and key, and the symbol of a token
from its waitpoint.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar
from uuid import UUID

import asyncpg

from flowfabric.engine import Engine, FlowFabricError, OpenWaitpoint, Secret, State, Submission, Submitted
from flowfabric.testing import VirtualClock
from tests.model.wait_records import signal_symbol, slot_symbol, token_symbol
from tests.model.world import symbol
from tests.stores import TABLES, PostgresTestStore, SqliteTestStore

Outcome = TypeVar("Outcome")
Row = dict[str, Any]
Rows = dict[str, list[Row]]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WAITS = ("suspension", "waitpoint", "signal", "signing_key")
_STORED = tuple(dict.fromkeys(table for table in (*TABLES, *_WAITS) if table != "route"))
# Columns that a store generates for its own use.
_PRIVATE = {
    ("event", "id"), ("event", "transaction_id"), ("execution", "event_xid"), ("execution", "route_id"),
    ("waitpoint", "nonce"), ("waitpoint", "token_hash"),
}  # fmt: skip
_ID_NAMES = ("id", "consumed_by", "grant", "suspension", "signal")
_JSON = frozenset({"tags", "policy", "details", "condition"})
FORGED = "!"
_CHOSEN = 1000
_LISTS = ("waitpoints.list", "waitpoints.list_suspended")
_IGNORED: dict[str, Any] = {"fingerprint": None, "missing": ()}
_MAKES_WAITPOINTS = ("leases.suspend", "waitpoints.create")
_REFUSAL_FIELDS = ("state", "epoch", "outcome", "attempt_index", "generation")


class SharedClock(VirtualClock):
    """The clock of both stores and the model, which every example restarts."""

    def restart(self) -> None:
        VirtualClock.__init__(self)


class Database(Protocol):
    """Raw access to the tables of a store."""

    async def rows(self) -> Rows: ...
    async def waitpoints(self) -> list[Row]:
        """Return the ids, executions and keys of all waitpoints."""

    async def submit_in_transaction(self, engine: Engine, submission: Submission, *, commit: bool) -> Submitted:
        """Submit in a transaction of this connection, then commit or roll it back."""

    async def clear(self) -> None: ...
    async def close(self) -> None: ...


class SqliteDatabase:
    """A second connection to the file."""

    def __init__(self, store: SqliteTestStore) -> None:
        self._connection = sqlite3.connect(store.path, isolation_level=None, timeout=10)
        self._connection.execute("PRAGMA wal_autocheckpoint = 0")
        self._connection.row_factory = sqlite3.Row

    async def rows(self) -> Rows:
        return {
            table: [_from_sqlite(row) for row in self._connection.execute(f"SELECT * FROM ff_{table}")]
            for table in _STORED
        }

    async def waitpoints(self) -> list[Row]:
        return [dict(row) for row in self._connection.execute("SELECT id, execution_id, key FROM ff_waitpoint")]

    async def submit_in_transaction(self, engine: Engine, submission: Submission, *, commit: bool) -> Submitted:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            return engine.executions.submit_in_transaction_sync(self._connection, submission)
        finally:
            self._connection.execute("COMMIT" if commit else "ROLLBACK")

    async def clear(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        for table in _STORED:
            self._connection.execute(f"DELETE FROM ff_{table}")
        self._connection.execute("UPDATE ff_clock SET newest_at = 0")
        self._connection.execute("COMMIT")

    async def close(self) -> None:
        self._connection.close()


class PostgresDatabase:
    """A separate connection."""

    def __init__(self, store: PostgresTestStore, connection: asyncpg.Connection[Any]) -> None:
        self._store = store
        self._connection = connection

    async def rows(self) -> Rows:
        """Read all tables in one statement, because each step reads them several times."""
        schema, tables = self._store.schema, {table: list[Row]() for table in _STORED}
        each = [f"SELECT '{table}', to_jsonb(stored) FROM \"{schema}\".{table} AS stored" for table in _STORED]
        for table, document in await self._connection.fetch(" UNION ALL ".join(each)):
            row = json.loads(document)
            tables[table].append({name: _from_json(name, value) for name, value in row.items()})
        return tables

    async def waitpoints(self) -> list[Row]:
        statement = f'SELECT id::TEXT, execution_id::TEXT, key FROM "{self._store.schema}".waitpoint'
        return [dict(row) for row in await self._connection.fetch(statement)]

    async def submit_in_transaction(self, engine: Engine, submission: Submission, *, commit: bool) -> Submitted:
        transaction = self._connection.transaction()
        await transaction.start()
        try:
            return await engine.executions.submit_in_transaction(self._connection, submission)
        finally:
            await (transaction.commit() if commit else transaction.rollback())

    async def clear(self) -> None:
        deletes = [f'DELETE FROM "{self._store.schema}".{table}' for table in _STORED]
        await self._connection.execute("; ".join(deletes))

    async def close(self) -> None:
        await self._connection.close()
        await self._store.drop()


class Side:
    """A store with its engine, its raw rows and the symbols of its ids."""

    def __init__(self, name: str, engine: Engine, database: Database) -> None:
        self.name = name
        self._engine = engine
        self._database = database
        self._symbols: dict[UUID, UUID] = {}
        self._real: dict[UUID, UUID] = {}
        self._minted = 0
        self._slots: Counter[tuple[UUID, str]] = Counter()
        self._tokens: dict[Secret, Secret] = {}

    async def clear(self) -> None:
        """Empty the store except for its routes, which engines cache."""
        await self._database.clear()
        self._symbols.clear()
        self._real.clear()
        self._minted = 0
        self._slots.clear()
        self._tokens.clear()

    async def call(self, path: str, namespace: str, arguments: Mapping[str, Any]) -> Any:
        """Return the outcome of the engine, or its refusal as a value, with symbols instead of ids."""
        engine = self._engine.for_namespace(namespace)
        group, name = path.split(".")
        try:
            match name:
                case "submit_in_transaction":
                    return self._replace_ids(await self._database.submit_in_transaction(engine, **arguments))
                case "pages":
                    return self._replace_ids(await pages(engine, **arguments))
            operation = getattr(getattr(engine, group), name)
            outcome = await operation(**self._restore_ids(arguments))
            if path in _MAKES_WAITPOINTS:
                self._name_waitpoints(await self._database.waitpoints())
            return make_comparable(self._replace_ids(outcome)) if path in _LISTS else self._replace_ids(outcome)
        except FlowFabricError as error:
            return describe_refusal(error, self._replace_ids)

    async def tick(self) -> Any:
        """Run all duties once and return their reports."""
        return await self._engine.reconcilers.tick()

    async def rows(self) -> Rows:
        """Return everything that is stored, in a form that can be compared between SQLite and PostgreSQL."""
        tables = await self._database.rows()
        self._name_waitpoints(tables["waitpoint"])
        self._name_signals(tables["signal"])
        return {table: [self._row(table, row) for row in tables[table]] for table in _STORED}

    async def close(self) -> None:
        await self._engine.close()
        await self._database.close()

    def _name_waitpoints(self, rows: list[Row]) -> None:
        """Give symbols to new waitpoints. A step adds at most one waitpoint per execution and key, so each new
        waitpoint gets the next number.
        """
        waitpoints = [(UUID(row["id"]), self._get_symbol(UUID(row["execution_id"])), row["key"]) for row in rows]
        for id_, execution_id, key in waitpoints:
            if id_ not in self._symbols:
                self._slots[execution_id, key] += 1
                self._name(id_, slot_symbol(execution_id, key, self._slots[execution_id, key]))

    def _name_signals(self, rows: list[Row]) -> None:
        """Give symbols to the signals that the engine sent itself, because no outcome contains their ids."""
        for row in rows:
            id_ = UUID(row["id"])
            if id_.int >= _CHOSEN and id_ not in self._symbols:
                self._name(id_, signal_symbol(self._get_symbol(UUID(row["execution_id"])), row["seq"]))

    def _get_token_symbol(self, value: OpenWaitpoint) -> Secret | None:
        """Return the symbol for the token of a waitpoint. Check that a waitpoint never has two different tokens."""
        if value.token is None:
            return None
        named = token_symbol(self._get_symbol(value.id))
        assert self._tokens.setdefault(named, value.token) == value.token, "a waitpoint has one token"
        return named

    def _real_token(self, named: Secret) -> Secret:
        """Return the real token of a symbol. If the symbol is marked as forged, return a slightly changed token."""
        text = named.reveal()
        if not text.endswith(FORGED):
            return self._tokens[named]
        real = self._tokens[Secret(text.removesuffix(FORGED))].reveal()
        return Secret(real[:-2] + ("AA" if real[-2:] != "AA" else "BA"))

    def _replace_ids(self, value: Any) -> Any:
        if isinstance(value, OpenWaitpoint):
            return replace(value, id=self._get_symbol(value.id), token=self._get_token_symbol(value))
        if isinstance(value, UUID):
            return self._get_symbol(value)
        if isinstance(value, (list, tuple)):
            return type(value)(self._replace_ids(item) for item in value)
        if isinstance(value, FlowFabricError):
            return describe_refusal(value, self._replace_ids)
        if is_dataclass(value) and not isinstance(value, type):
            values = {item.name: self._replace_ids(getattr(value, item.name)) for item in fields(value)}
            return replace(value, **values)
        return value

    def _get_symbol(self, id_: UUID) -> UUID:
        if id_.int < _CHOSEN:
            return id_  # Keep this id, because the caller chose it.
        if id_ not in self._symbols:
            self._minted += 1
            self._name(id_, symbol(self._minted))
        return self._symbols[id_]

    def _name(self, id_: UUID, named: UUID) -> None:
        self._symbols[id_], self._real[named] = named, id_

    def _restore_ids(self, value: Any) -> Any:
        if isinstance(value, UUID):
            return self._real.get(value, value)
        if isinstance(value, Secret):
            return self._real_token(value)
        if isinstance(value, (list, tuple)):
            return type(value)(self._restore_ids(item) for item in value)
        if isinstance(value, Mapping):
            return {key: self._restore_ids(item) for key, item in value.items()}
        if is_dataclass(value) and not isinstance(value, type) and hasattr(value, "lease_id"):
            return replace(value, **{item.name: self._restore_ids(getattr(value, item.name)) for item in fields(value)})
        return value

    def _row(self, table: str, row: Row) -> Row:
        return {name: self._column(name, value) for name, value in row.items() if (table, name) not in _PRIVATE}

    def _column(self, name: str, value: Any) -> Any:
        if value is None or type(value) in (int, bytes):
            return value  # Return early, because every column of every row passes here after each step.
        match value:
            case bool():
                return int(value)
            case str() if name in ("secret", "check_value"):
                return "known"
            case dict():
                return {key: self._column(key, item) for key, item in value.items()}
            case str() if len(value) == 36 and name.endswith(_ID_NAMES):
                return str(self._find_symbol(UUID(value)))
            case _:
                return value

    def _find_symbol(self, id_: UUID) -> UUID:
        """Return the symbol of an id, or zero if the id has not appeared in an outcome."""
        return self._symbols.get(id_, id_ if id_.int < _CHOSEN else UUID(int=0))


class Sides:
    """SQLite and PostgreSQL under one clock and one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: SharedClock, sides: Sequence[Side]) -> None:
        self._loop = loop
        self.clock = clock
        self._sides = sides

    def run(self, work: Coroutine[Any, Any, Outcome]) -> Outcome:
        return self._loop.run_until_complete(work)

    def begin(self) -> None:
        """Empty the stores and restart the clock."""
        self.clock.restart()
        self.run(self._each("clear"))

    def call(self, path: str, namespace: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outcome of each store by the store's name."""
        return self.run(self._each("call", path, namespace, arguments))

    def tick(self) -> dict[str, Any]:
        return self.run(self._each("tick"))

    def rows(self) -> dict[str, Rows]:
        return self.run(self._each("rows"))

    async def _each(self, method: str, *arguments: Any) -> dict[str, Any]:
        outcomes = await asyncio.gather(*(getattr(side, method)(*arguments) for side in self._sides))
        return {side.name: outcome for side, outcome in zip(self._sides, outcomes, strict=True)}

    async def close(self) -> None:
        for side in self._sides:
            await side.close()


async def open_sides(loop: asyncio.AbstractEventLoop, folder: Path, dsn: str) -> Sides:
    """Open both stores, empty."""
    clock = SharedClock()
    file, schema = SqliteTestStore(folder), PostgresTestStore(dsn)
    sqlite = Side("sqlite", await file.connecting(clock), SqliteDatabase(file))
    engine = await schema.connecting(clock, pool_size=2)
    postgres = Side("postgres", engine, PostgresDatabase(schema, await asyncpg.connect(dsn)))
    return Sides(loop, clock, [sqlite, postgres])


async def pages(engine: Engine, limit: int, **filters: Any) -> list[list[tuple[UUID, State, int]]]:
    """Return the pages of a list."""
    all_pages, cursor = [], None
    while True:
        page = await engine.executions.list(limit=limit, cursor=cursor, **filters)
        all_pages.append([(execution.id, execution.state, execution.version) for execution in page.items])
        cursor = page.next_cursor
        if cursor is None:
            return all_pages


def make_comparable(views: list[Any]) -> list[Any]:
    """Sort views by symbol, because the order of ids differs between the stores. Drop texts that only people read."""
    views = [
        replace(view, **{name: value for name, value in _IGNORED.items() if hasattr(view, name)}) for view in views
    ]
    return sorted(views, key=lambda view: str(view.id))


def outcome_or_refusal(call: Callable[..., Outcome], *arguments: Any, **named: Any) -> Outcome | tuple[Any, ...]:
    """Return the outcome of a call, or its refusal as a value."""
    try:
        return call(*arguments, **named)
    except FlowFabricError as error:
        return describe_refusal(error)


def _from_sqlite(row: Mapping[str, Any]) -> Row:
    columns = dict(row)
    return columns | {name: json.loads(columns[name]) for name in _JSON if columns.get(name) is not None}


def _from_json(name: str, value: Any) -> Any:
    """Convert a JSON value of a PostgreSQL column to the value that SQLite stores."""
    if isinstance(value, str) and (name == "at" or name.endswith(("_at", "_until"))):
        return to_microseconds(datetime.fromisoformat(value))
    if isinstance(value, str) and value.startswith("\\x"):
        return bytes.fromhex(value[2:])
    return value


def describe_refusal(error: FlowFabricError, replace_ids: Any = lambda value: value) -> tuple[Any, ...]:
    """Return a refusal as a tuple of its class, its code and its fields about the execution."""
    fields_shown = [(name, replace_ids(error.fields[name])) for name in _REFUSAL_FIELDS if name in error.fields]
    return "refused", type(error).__name__, error.code, *fields_shown


def to_microseconds(time: datetime) -> int:
    """Return a timestamp as SQLite stores it."""
    return (time - _EPOCH) // timedelta(microseconds=1)
