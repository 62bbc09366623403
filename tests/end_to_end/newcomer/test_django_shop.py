"""A Django shop whose worker is killed with -9 while it packs a parcel."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.callers import django_database
from tests.end_to_end.newcomer.processes import kill, processes_of, store_options_of, until
from tests.stores import PostgresTestStore, SqliteTestStore, TestStore, opened


async def request(url: str, method: str = "GET") -> dict[str, Any]:
    """Return the JSON of a response, also of one that is an error."""

    def send() -> bytes:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10) as response:
                return bytes(response.read())
        except urllib.error.HTTPError as error:
            with error:
                return bytes(error.read())

    return dict(json.loads(await asyncio.to_thread(send)))


def database_of(store: PostgresTestStore | SqliteTestStore) -> dict[str, object]:
    """Return Django's settings of the store's database, in which its tables are in the schema of the store."""
    if isinstance(store, SqliteTestStore):
        return django_database(store)
    return {**django_database(store), "OPTIONS": {"options": f"-c search_path={store.schema}"}}


@asynccontextmanager
async def without_orders(store: TestStore) -> AsyncIterator[None]:
    """Drop the table of the shop after the block, because other tests use the same schema."""
    try:
        yield
    finally:
        if isinstance(store, PostgresTestStore):
            await store.query("DROP TABLE IF EXISTS ff.shop_order")


async def test_django_shop_ships_each_order_once_although_its_worker_is_killed(
    store: TestStore, tmp_path: Path
) -> None:
    assert isinstance(store, PostgresTestStore | SqliteTestStore)
    variables = {
        "FLOWFABRIC_STORE": store.url,
        "SHOP_OPTIONS": json.dumps(store_options_of(store)),
        "SHOP_DATABASE": json.dumps(database_of(store)),
    }
    async with (
        opened(store) as engine,
        without_orders(store),
        processes_of("django_shop", tmp_path, **variables) as shop,
    ):
        worker, web = await shop.start_worker(), await shop.start_program()
        assert web.stdout is not None
        url = f"http://127.0.0.1:{(await web.stdout.readline()).decode().split()[1]}/orders"
        # A request that fails stores neither the order nor its shipping.
        assert await request(f"{url}/13?refuse=1", "POST") == {"error": "the card was refused"}
        ordered = await request(f"{url}/17", "POST")
        await shop.wait_for_effect("packing 17")
        await kill(worker)
        (tmp_path / "packer-is-back.txt").touch()
        await shop.start_worker()

        async def is_shipped() -> bool:
            return (await engine.executions.describe(ordered["id"])).state == "completed"

        await until(is_shipped)
        assert [await request(f"{url}/{number}") for number in (13, 17)] == [{"states": []}, {"states": ["shipped"]}]
        # Only the step that the kill interrupted ran again, with the same idempotency key.
        assert Counter(shop.effects()) == {
            f"charged 17 {ordered['id']}/charge": 1,
            f"packing 17 {ordered['id']}/pack": 2,
            f"sent parcel 17 {ordered['id']}/send": 1,
        }
        assert [str(execution.id) for execution in (await engine.executions.list()).items] == [ordered["id"]]
