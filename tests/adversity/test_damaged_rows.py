"""A call that reads a damaged row gets an error, and a duty still processes the other rows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flowfabric.engine import State, Unavailable
from tests.postgres_server import PostgresServer
from tests.scenarios import submitted
from tests.stores import PostgresTestStore, opened

PAGE = 8192
# Values that are too long for the page of a row are stored in a separate TOAST table.
BESIDE = """
    SELECT current_setting('data_directory') || '/' || pg_relation_filepath(reltoastrelid) AS path
    FROM pg_class
    WHERE oid = 'ff.execution'::regclass
"""


async def test_damaged_row_does_not_stop_other_rows(spare_server: PostgresServer, spare: PostgresTestStore) -> None:
    async with opened(spare) as engine:
        damaged, *well = [await submitted(engine, payload=os.urandom(PAGE), delay="1ms") for _ in range(3)]
    [beside] = await spare.query(BESIDE)
    spare_server.stop()
    wipe_first_page(Path(beside["path"]))
    spare_server.start()
    async with opened(spare) as engine:
        ticks = {tick.duty: tick for tick in await engine.reconcilers.tick()}
        assert (ticks["delayed_work"].done, ticks["delayed_work"].failed) == (2, 1)
        assert [(await engine.executions.describe(id_)).state for id_ in well] == [State.WAITING] * 2
        with pytest.raises(Unavailable) as raised:
            await engine.executions.describe(damaged)
        assert raised.value.code == "storage_error"


def wipe_first_page(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(PAGE))
