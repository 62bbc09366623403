"""Tests that the log of a SQLite file is recognized by the rows of the clock that are in it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flowfabric.backends.sqlite.log_check import check_log, has_log
from flowfabric.core.errors import Unavailable
from tests.scenarios import submitted
from tests.stores import SqliteTestStore, opened


async def test_log_that_an_engine_writes_belongs_to_its_file(tmp_path: Path) -> None:
    store = SqliteTestStore(tmp_path)
    async with opened(store) as engine:
        await submitted(engine)
    async with opened(store) as engine:
        for _ in range(3):
            await submitted(engine)
        assert has_log(store.url)
        assert check_log(store.url)


async def test_log_of_another_file_is_refused(tmp_path: Path) -> None:
    stores = [SqliteTestStore(tmp_path / name) for name in ("one", "two")]
    for store in stores:
        store.path.parent.mkdir()
        async with opened(store) as engine:
            await submitted(engine)
    async with opened(stores[0]) as engine:
        for _ in range(3):
            await submitted(engine)
        shutil.copy(f"{stores[0].path}-wal", f"{stores[1].path}-wal")
    with pytest.raises(Unavailable, match="is the log of another file"):
        check_log(stores[1].url)
