"""Tests that `connect` refuses bad options and unusable stores with one line that names the problem."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from flowfabric.engine import FlowFabricError, InvalidRequest, Unavailable, connect
from tests.bad_input import bad_values, parameters, shown
from tests.stores import PostgresTestStore, TestStore


async def _connect_error(url: Any, **options: Any) -> FlowFabricError | None:
    """Return the error that opening the store raises, or None. Do not catch errors of other types."""
    connect_error: FlowFabricError | None = None
    try:
        async with connect(url, **options):
            pass
    except FlowFabricError as error:
        connect_error = error
    assert "\n" not in str(connect_error)
    assert len(str(connect_error)) < 600
    return connect_error


def _list_files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@pytest.mark.parametrize("parameter", parameters(connect), ids=lambda parameter: str(parameter.name))
async def test_every_option_of_connect_refuses_bad_input(parameter: inspect.Parameter, tmp_path: Path) -> None:
    problems = []
    for value in bad_values(parameter):
        options: dict[str, Any] = {"url": str(tmp_path / "jobs.db")} | {parameter.name: value}
        try:
            error = await _connect_error(**options)
        except Exception as bare:
            problems.append(f"{shown(value)} raised a bare {type(bare).__name__}: {str(bare)[:60]}")
            continue
        if not isinstance(error, InvalidRequest):
            problems.append(f"{shown(value)}: {error!r}")
    assert problems == []
    assert _list_files(tmp_path) == [], "connect created no file"


async def test_bad_schema_is_refused_before_the_server_is_contacted() -> None:
    for schema in ("Public", "a b", 'x"; DROP SCHEMA public; --', "x" * 64, "", "1x"):
        error = await _connect_error("postgresql://nobody@127.0.0.1:1/none", schema=schema)
        assert isinstance(error, InvalidRequest), schema


BAD_SERVERS = [
    "postgresql://nobody@127.0.0.1:1/none",
    "postgresql://127.0.0.1:notaport/none",
    "postgresql://127.0.0.1:99999/none",
    "postgresql://[/none",
    "postgresql://127.0.0.1:1/none?sslmode=nonsense",
    "postgresql://127.0.0.1:1/none?no_such_option=1",
    "postgresql:///none?host=/no/such/folder",
]


@pytest.mark.parametrize("url", BAD_SERVERS)
async def test_unreachable_server_raises_a_flowfabric_error(url: str) -> None:
    error = await _connect_error(url, statement_timeout="1s")
    assert isinstance(error, InvalidRequest | Unavailable)


async def test_errors_never_show_a_password() -> None:
    for url in (
        "postgresql://me:s3cret@127.0.0.1:1/none",
        "postgresql://me:s3cret@127.0.0.1:x/none",
        "pg://me:s3cret@h/x",
    ):
        error = await _connect_error(url, statement_timeout="1s")
        assert error is not None
        assert "s3cret" not in str(error) + repr(error) + str(dict(error.fields))


async def test_file_that_cannot_be_a_store_raises_a_flowfabric_error(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("this is no database, but it is long enough to have a header of one hundred bytes or more " * 3)
    expected = {
        str(tmp_path): "storage_not_found",
        str(tmp_path / "missing" / "jobs.db"): "storage_not_found",
        str(text): "storage_damaged",
    }
    for path, code in expected.items():
        error = await _connect_error(path)
        assert error is not None
        assert error.code == code, path
    long = await _connect_error(str(tmp_path / ("x" * 5000)))
    assert isinstance(long, InvalidRequest | Unavailable)
    assert text.read_text().startswith("this is no database"), "the file is unchanged"


async def test_missing_store_is_not_created_without_migration(store: TestStore) -> None:
    async with store.connecting() as engine:
        await engine.executions.submit("job")
    if isinstance(store, PostgresTestStore):
        error = await _connect_error(store.url, schema=f"{store.schema}_absent", migrate=False, durable=False)
    else:
        error = await _connect_error(f"{store.url}.absent", migrate=False, durable=False)
    assert isinstance(error, Unavailable)
    assert error.code == "store_not_found"
    if isinstance(store, PostgresTestStore):
        command = (
            f"flowfabric migrate --store postgresql://…/{urlsplit(store.url).path[1:]} --schema {store.schema}_absent"
        )
        assert f"in schema {store.schema}_absent" in error.message
    else:
        command = f"flowfabric migrate --store {store.url}.absent"
        assert f"there is no store at {store.url}.absent" in error.message
    assert f"create the store with `{command}`" in error.message
