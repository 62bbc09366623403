"""The schema of a database as its catalog describes it, in a form that can be compared."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from importlib.resources import files
from pathlib import Path

import asyncpg

from flowfabric.store.statements import Dialect, split_script

SQLITE = Dialect(table_prefix="ff_", numbered=False)
Catalog = set[tuple[str, ...]]

_POSTGRES = {
    "table": """
        SELECT c.relname, c.relkind::TEXT, c.relpersistence::TEXT, COALESCE(c.reloptions::TEXT, '')
        FROM pg_class AS c
        WHERE c.relnamespace = $1::TEXT::REGNAMESPACE
    """,
    "column": """
        SELECT
            c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull::TEXT, a.attidentity::TEXT,
            a.attgenerated::TEXT, a.attstorage::TEXT, COALESCE(pg_get_expr(d.adbin, d.adrelid), '')
        FROM pg_attribute AS a
        JOIN pg_class AS c ON c.oid = a.attrelid AND c.relkind = 'r'
        LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE c.relnamespace = $1::TEXT::REGNAMESPACE
            AND a.attnum > 0
            AND NOT a.attisdropped
    """,
    "constraint": """
        SELECT c.relname, o.conname, o.convalidated::TEXT, pg_get_constraintdef(o.oid)
        FROM pg_constraint AS o
        JOIN pg_class AS c ON c.oid = o.conrelid
        WHERE o.connamespace = $1::TEXT::REGNAMESPACE
    """,
    "index": """
        SELECT c.relname, pg_get_indexdef(i.indexrelid), i.indisvalid::TEXT
        FROM pg_index AS i
        JOIN pg_class AS c ON c.oid = i.indexrelid
        WHERE c.relnamespace = $1::TEXT::REGNAMESPACE
    """,
    "trigger": """
        SELECT c.relname, t.tgname
        FROM pg_trigger AS t
        JOIN pg_class AS c ON c.oid = t.tgrelid
        WHERE c.relnamespace = $1::TEXT::REGNAMESPACE
    """,
    "function": """
        SELECT p.proname
        FROM pg_proc AS p
        WHERE p.pronamespace = $1::TEXT::REGNAMESPACE
    """,
}


def read_schema_script(backend: str) -> str:
    """Return the text of a backend's `schema.sql`."""
    return (files(f"flowfabric.backends.{backend}") / "schema.sql").read_text(encoding="utf-8")


async def read_postgres_catalog(dsn: str, schema: str) -> Catalog:
    """Return the tables, columns, constraints, indexes, triggers and functions of a schema, without its name."""
    connection = await asyncpg.connect(dsn)
    try:
        catalog: Catalog = set()
        for kind, query in _POSTGRES.items():
            for row in await connection.fetch(query, schema):
                catalog.add((kind, *(value.replace(f"{schema}.", "ff.") for value in row)))
        return catalog
    finally:
        await connection.close()


async def make_postgres_schema(dsn: str, schema: str, script: str) -> None:
    """Create a schema by a script, in which `ff.` stands for the schema."""
    dialect = Dialect(table_prefix=f'"{schema}".', numbered=True)
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(f'CREATE SCHEMA "{schema}"')
        for piece in split_script(script):
            await connection.execute(dialect.translate(piece).text)
    finally:
        await connection.close()


def read_sqlite_catalog(path: Path) -> Catalog:
    """Return the tables and indexes of a file, normalized, and the rows that the schema contains."""
    with closing(sqlite3.connect(path)) as connection:
        catalog: Catalog = set()
        for kind, name, table, text in connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema"):
            catalog.add((kind, name, table, _normalize(text or "")))
        for row in connection.execute("SELECT only_row, newest_at FROM ff_clock"):
            catalog.add(("row", "ff_clock", *map(str, row)))
        return catalog


def make_sqlite_file(path: Path, script: str) -> None:
    """Create a file by a script."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for piece in split_script(script):
            connection.execute(SQLITE.translate(piece).text)


def _normalize(text: str) -> str:
    text = text.replace("CREATE TABLE IF NOT EXISTS", "CREATE TABLE").replace('"', "")
    return re.sub(r"\s*([(),])\s*", r"\1", re.sub(r"\s+", " ", text)).strip()
