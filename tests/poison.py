"""Rows that reject writes through a trigger, like a broken page or index of the database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.stores import TestStore

_REFUSE = "CREATE FUNCTION ff.refuse() RETURNS TRIGGER LANGUAGE plpgsql AS $$BEGIN RAISE SQLSTATE '{}'; END$$"
CHECK_VIOLATION = "23514"


@asynccontextmanager
async def poisoned(
    store: TestStore, table: str, act: str, column: str, value: object, *, saying: str = CHECK_VIOLATION
) -> AsyncIterator[None]:
    """While the block runs, reject every DELETE or UPDATE (`act`) of rows that have this value in a column.

    On PostgreSQL, the rejection has the SQLSTATE `saying`.
    """
    named, condition = f"ff.{table}", f"OLD.{column} = '{value}'"
    if store.name == "sqlite":
        trigger = f"BEFORE {act} ON {named} WHEN {condition} BEGIN SELECT RAISE(ABORT, 'poisoned'); END"
        await store.query(f"CREATE TRIGGER ff.poison {trigger}")
    else:
        trigger = f"BEFORE {act} ON {named} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION ff.refuse()"
        await store.query(_REFUSE.format(saying))
        await store.query(f"CREATE TRIGGER poison {trigger}")
    try:
        yield
    finally:
        await store.query("DROP TRIGGER ff.poison" if store.name == "sqlite" else "DROP FUNCTION ff.refuse() CASCADE")
