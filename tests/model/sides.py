"""The two stores that run beside the reference model, each with an engine and a view of its raw rows.

Stores mint their own ids for executions, leases, grants and suspensions. A side gives each of them a symbol when it
first appears in an answer; the order of appearance is the same on all sides, so symbols can be compared and sent back
where ids cannot. Waitpoints may be stored long before they are shown, so they are named after their place, and their
tokens after them.
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
from tests.model.waits import signal_symbol, slot_symbol, token_symbol
from tests.model.world import symbol
from tests.stores import TABLES, PostgresTestStore, SqliteTestStore

Answer = TypeVar("Answer")
Row = dict[str, Any]
Rows = dict[str, list[Row]]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WAITS = ("suspension", "waitpoint", "signal", "signing_key")
_STORED = tuple(dict.fromkeys(table for table in (*TABLES, *_WAITS) if table != "route"))
# What a store draws for itself and that means nothing outside it.
_PRIVATE = {
    ("event", "id"), ("event", "transaction_id"), ("execution", "event_xid"), ("execution", "route_id"),
    ("waitpoint", "nonce"), ("waitpoint", "token_hash"),
}  # fmt: skip
_ID_NAMES = ("id", "consumed_by", "grant", "suspension", "signal")
_JSON = frozenset({"tags", "policy", "details", "condition"})
FORGED = "!"
_CHOSEN = 1000
_LISTS = ("waitpoints.list", "waitpoints.list_suspended")
_UNSEEN: dict[str, Any] = {"fingerprint": None, "missing": ()}
_MAKES_WAITPOINTS = ("leases.suspend", "waitpoints.create")
_REFUSAL_FIELDS = ("state", "epoch", "outcome", "attempt_index", "generation")


class SharedClock(VirtualClock):
    """The one clock of all sides; every example starts it afresh."""

    def restart(self) -> None:
        VirtualClock.__init__(self)


class Database(Protocol):
    """Raw access to a store's tables."""

    async def rows(self) -> Rows: ...
    async def waitpoints(self) -> list[Row]:
        """The ids, executions and keys of all waitpoints."""

    async def submit_within(self, engine: Engine, submission: Submission, *, commit: bool) -> Submitted:
        """Submits in a transaction of this connection, which then ends well or not."""

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

    async def submit_within(self, engine: Engine, submission: Submission, *, commit: bool) -> Submitted:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            return engine.executions.submit_within_sync(self._connection, submission)
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
    """A connection of its own."""

    def __init__(self, store: PostgresTestStore, connection: asyncpg.Connection[Any]) -> None:
        self._store = store
        self._connection = connection

    async def rows(self) -> Rows:
        """All tables by one statement, since a step looks at them several times."""
        schema, found = self._store.schema, {table: list[Row]() for table in _STORED}
        each = [f"SELECT '{table}', to_jsonb(stored) FROM \"{schema}\".{table} AS stored" for table in _STORED]
        for table, document in await self._connection.fetch(" UNION ALL ".join(each)):
            row = json.loads(document)
            found[table].append({name: _from_json(name, value) for name, value in row.items()})
        return found

    async def waitpoints(self) -> list[Row]:
        statement = f'SELECT id::TEXT, execution_id::TEXT, key FROM "{self._store.schema}".waitpoint'
        return [dict(row) for row in await self._connection.fetch(statement)]

    async def submit_within(self, engine: Engine, submission: Submission, *, commit: bool) -> Submitted:
        transaction = self._connection.transaction()
        await transaction.start()
        try:
            return await engine.executions.submit_within(self._connection, submission)
        finally:
            await (transaction.commit() if commit else transaction.rollback())

    async def clear(self) -> None:
        deletes = [f'DELETE FROM "{self._store.schema}".{table}' for table in _STORED]
        await self._connection.execute("; ".join(deletes))

    async def close(self) -> None:
        await self._connection.close()
        await self._store.drop()


class Side:
    """One store: the engine on it, its raw rows, and the symbols of its ids."""

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
        """Empties the store; its routes stay, because engines remember them."""
        await self._database.clear()
        self._symbols.clear()
        self._real.clear()
        self._minted = 0
        self._slots.clear()
        self._tokens.clear()

    async def call(self, path: str, namespace: str, arguments: Mapping[str, Any]) -> Any:
        """What the engine answers, or its refusal as a value, with symbols for ids."""
        engine = self._engine.within(namespace)
        group, name = path.split(".")
        try:
            match name:
                case "submit_within":
                    return self._symbolic(await self._database.submit_within(engine, **arguments))
                case "pages":
                    return self._symbolic(await pages(engine, **arguments))
            operation = getattr(getattr(engine, group), name)
            answer = await operation(**self._with_ids(arguments))
            if path in _MAKES_WAITPOINTS:
                self._name_waitpoints(await self._database.waitpoints())
            return comparable(self._symbolic(answer)) if path in _LISTS else self._symbolic(answer)
        except FlowFabricError as error:
            return refusal_shown(error, self._symbolic)

    async def tick(self) -> Any:
        """What all duties did."""
        return await self._engine.reconcilers.tick()

    async def rows(self) -> Rows:
        """Everything that is stored, comparable between sides."""
        found = await self._database.rows()
        self._name_waitpoints(found["waitpoint"])
        self._name_signals(found["signal"])
        return {table: [self._row(table, row) for row in found[table]] for table in _STORED}

    async def close(self) -> None:
        await self._engine.close()
        await self._database.close()

    def _name_waitpoints(self, rows: list[Row]) -> None:
        """One step gives an execution no two of the same key, so those that are new can be counted."""
        found = [(UUID(row["id"]), self._symbol_of(UUID(row["execution_id"])), row["key"]) for row in rows]
        for id_, execution_id, key in found:
            if id_ not in self._symbols:
                self._slots[execution_id, key] += 1
                self._name(id_, slot_symbol(execution_id, key, self._slots[execution_id, key]))

    def _name_signals(self, rows: list[Row]) -> None:
        """Those that were not answered to anybody are the engine's own."""
        for row in rows:
            id_ = UUID(row["id"])
            if id_.int >= _CHOSEN and id_ not in self._symbols:
                self._name(id_, signal_symbol(self._symbol_of(UUID(row["execution_id"])), row["seq"]))

    def _token_of(self, value: OpenWaitpoint) -> Secret | None:
        """What stands for the token of a waitpoint, of which there must be only one."""
        if value.token is None:
            return None
        named = token_symbol(self._symbol_of(value.id))
        assert self._tokens.setdefault(named, value.token) == value.token, "a waitpoint has one token"
        return named

    def _real_token(self, named: Secret) -> Secret:
        """The token that is meant, or one that is nearly the same."""
        text = named.reveal()
        if not text.endswith(FORGED):
            return self._tokens[named]
        real = self._tokens[Secret(text.removesuffix(FORGED))].reveal()
        return Secret(real[:-2] + ("AA" if real[-2:] != "AA" else "BA"))

    def _symbolic(self, value: Any) -> Any:
        if isinstance(value, OpenWaitpoint):
            return replace(value, id=self._symbol_of(value.id), token=self._token_of(value))
        if isinstance(value, UUID):
            return self._symbol_of(value)
        if isinstance(value, (list, tuple)):
            return type(value)(self._symbolic(item) for item in value)
        if isinstance(value, FlowFabricError):
            return refusal_shown(value, self._symbolic)
        if is_dataclass(value) and not isinstance(value, type):
            known = {item.name: self._symbolic(getattr(value, item.name)) for item in fields(value)}
            return replace(value, **known)
        return value

    def _symbol_of(self, id_: UUID) -> UUID:
        if id_.int < _CHOSEN:
            return id_  # The caller chose it.
        if id_ not in self._symbols:
            self._minted += 1
            self._name(id_, symbol(self._minted))
        return self._symbols[id_]

    def _name(self, id_: UUID, named: UUID) -> None:
        self._symbols[id_], self._real[named] = named, id_

    def _with_ids(self, value: Any) -> Any:
        if isinstance(value, UUID):
            return self._real.get(value, value)
        if isinstance(value, Secret):
            return self._real_token(value)
        if isinstance(value, (list, tuple)):
            return type(value)(self._with_ids(item) for item in value)
        if isinstance(value, Mapping):
            return {key: self._with_ids(item) for key, item in value.items()}
        if is_dataclass(value) and not isinstance(value, type) and hasattr(value, "lease_id"):
            return replace(value, **{item.name: self._with_ids(getattr(value, item.name)) for item in fields(value)})
        return value

    def _row(self, table: str, row: Row) -> Row:
        return {name: self._column(name, value) for name, value in row.items() if (table, name) not in _PRIVATE}

    def _column(self, name: str, value: Any) -> Any:
        if value is None or type(value) in (int, bytes):
            return value  # Most are, and every row of every table comes by here after each step.
        match value:
            case bool():
                return int(value)
            case str() if name in ("secret", "check_value"):
                return "known"
            case dict():
                return {key: self._column(key, item) for key, item in value.items()}
            case str() if len(value) == 36 and name.endswith(_ID_NAMES):
                return str(self._known(UUID(value)))
            case _:
                return value

    def _known(self, id_: UUID) -> UUID:
        """Ids in rows were all answered before; one that was not must not look like one that was."""
        return self._symbols.get(id_, id_ if id_.int < _CHOSEN else UUID(int=0))


class Sides:
    """SQLite and PostgreSQL under one clock and one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: SharedClock, sides: Sequence[Side]) -> None:
        self._loop = loop
        self.clock = clock
        self._sides = sides

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return self._loop.run_until_complete(work)

    def begin(self) -> None:
        """Empty stores and a clock at its start."""
        self.clock.restart()
        self.run(self._each("clear"))

    def call(self, path: str, namespace: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What every side answers, by its name."""
        return self.run(self._each("call", path, namespace, arguments))

    def tick(self) -> dict[str, Any]:
        return self.run(self._each("tick"))

    def rows(self) -> dict[str, Rows]:
        return self.run(self._each("rows"))

    async def _each(self, method: str, *arguments: Any) -> dict[str, Any]:
        answers = await asyncio.gather(*(getattr(side, method)(*arguments) for side in self._sides))
        return {side.name: answer for side, answer in zip(self._sides, answers, strict=True)}

    async def close(self) -> None:
        for side in self._sides:
            await side.close()


async def open_sides(loop: asyncio.AbstractEventLoop, folder: Path, dsn: str) -> Sides:
    """Both stores, empty."""
    clock = SharedClock()
    file, schema = SqliteTestStore(folder), PostgresTestStore(dsn)
    sqlite = Side("sqlite", await file.connecting(clock), SqliteDatabase(file))
    engine = await schema.connecting(clock, pool_size=2)
    postgres = Side("postgres", engine, PostgresDatabase(schema, await asyncpg.connect(dsn)))
    return Sides(loop, clock, [sqlite, postgres])


async def pages(engine: Engine, limit: int, **filters: Any) -> list[list[tuple[UUID, State, int]]]:
    """What a list shows, page by page."""
    found, cursor = [], None
    while True:
        page = await engine.executions.list(limit=limit, cursor=cursor, **filters)
        found.append([(item.id, item.state, item.version) for item in page.items])
        cursor = page.next_cursor
        if cursor is None:
            return found


def comparable(views: list[Any]) -> list[Any]:
    """Lists are in the order of ids, which differ between sides; words and fingerprints are for people."""
    views = [replace(item, **{name: value for name, value in _UNSEEN.items() if hasattr(item, name)}) for item in views]
    return sorted(views, key=lambda item: str(item.id))


def answer_or_refusal(call: Callable[..., Answer], *arguments: Any, **named: Any) -> Answer | tuple[Any, ...]:
    """What a call answers, or its refusal as a value."""
    try:
        return call(*arguments, **named)
    except FlowFabricError as error:
        return refusal_shown(error)


def _from_sqlite(row: Mapping[str, Any]) -> Row:
    columns = dict(row)
    return columns | {name: json.loads(columns[name]) for name in _JSON if columns.get(name) is not None}


def _from_json(name: str, value: Any) -> Any:
    """A column of a PostgreSQL row that went through JSON, as SQLite has it."""
    if isinstance(value, str) and (name == "at" or name.endswith(("_at", "_until"))):
        return since_1970_us(datetime.fromisoformat(value))
    if isinstance(value, str) and value.startswith("\\x"):
        return bytes.fromhex(value[2:])
    return value


def refusal_shown(error: FlowFabricError, shown: Any = lambda value: value) -> tuple[Any, ...]:
    """A refusal as a value: its kind, its code and what it says about the execution."""
    said = [(name, shown(error.fields[name])) for name in _REFUSAL_FIELDS if name in error.fields]
    return "refused", type(error).__name__, error.code, *said


def since_1970_us(time: datetime) -> int:
    """A moment as SQLite stores it."""
    return (time - _EPOCH) // timedelta(microseconds=1)
