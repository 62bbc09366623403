"""Tests for addresses of stores."""

from __future__ import annotations

import pytest

from flowfabric import App, InvalidRequest, connect
from flowfabric.core.store_address import make_absolute, without_driver


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg", "psycopg2"])
def test_the_driver_of_another_library_is_left_out_of_a_url(driver: str) -> None:
    plain = "postgresql://ann:x+y@db:5432/shop?sslmode=require"
    address = plain.replace("postgresql", f"postgresql+{driver}")
    assert without_driver(address) == make_absolute(address, "/home") == plain
    assert App(address).store == plain
    assert connect(address, listen_url=address) is not None
    assert make_absolute("sqlite+aiosqlite:///jobs.db", "/home") == "sqlite:////home/jobs.db"


def test_other_addresses_stay_as_they_are() -> None:
    for address in ("postgresql://db/shop", "sqlite:////jobs.db", ":memory:", "mysql+psycopg://db/shop", "/a+b://c"):
        assert without_driver(address) == address


async def test_a_url_of_another_database_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="url must be postgresql://"):
        await connect("mysql+asyncpg://db/shop")
