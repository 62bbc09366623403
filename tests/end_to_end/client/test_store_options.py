"""Store options of an app."""

from __future__ import annotations

from typing import Any

import pytest

from flowfabric import App, step
from flowfabric.engine import InvalidRequest
from tests.postgres_server import PostgresServer
from tests.stores import PostgresTestStore


async def double(number: int) -> int:
    return 2 * number


@pytest.mark.parametrize("pooler", [False, True])
async def test_app_passes_its_options_to_every_engine(postgres: PostgresServer, pooler: bool) -> None:
    store = PostgresTestStore(postgres.dsn)
    app = App(postgres.dsn, options={"schema": store.schema, "durable": False, "pooler": pooler, "pool_size": 3})

    @app.task
    async def task(number: int) -> int:
        return await step(double, number)

    try:
        async with app, app.worker(concurrency=2, lease="2s"):
            handle = await task.submit(4)
            assert await handle.result(timeout=60) == 8
        rows = await store.query("SELECT id FROM ff.execution")
        assert [row["id"] for row in rows] == [handle.id]
    finally:
        await store.drop()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ("schema=jobs", "invalid_type"),
        ({"scheme": "jobs"}, "invalid_choice"),
        ({"pool_size": 0}, "out_of_range"),
        ({"schema": 'a"b'}, "invalid_name"),
    ],
)
def test_invalid_options_are_rejected_by_the_constructor(options: Any, code: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        App("jobs.db", options=options)
    assert error.value.code == code
