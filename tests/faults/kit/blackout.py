"""A store that stops to respond: a proxy before PostgreSQL that swallows everything, or a locked SQLite file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from flowfabric.engine import StoreOptions
from tests.faults.kit.proxy import proxied
from tests.stores import PostgresTestStore, SqliteTestStore


@dataclass(frozen=True)
class Blackout:
    """The address of a store for the processes that the blackout hits, and the two controls."""

    url: str
    options: StoreOptions
    begin: Callable[[], None]
    end: Callable[[], None]


@contextmanager
def blackout(store: PostgresTestStore | SqliteTestStore) -> Iterator[Blackout]:
    """Yield the controls of a blackout, which ends with the block at the latest."""
    if isinstance(store, PostgresTestStore):
        with proxied(store.url) as (proxy, url):

            def stall() -> None:
                proxy.stalls = True

            yield Blackout(url, {"durable": False, "schema": store.schema}, stall, proxy.heal)
        return
    with closing(store.raw_connection()) as other:

        def lock() -> None:
            other.execute("BEGIN IMMEDIATE")

        def unlock() -> None:
            if other.in_transaction:
                other.execute("ROLLBACK")

        yield Blackout(store.url, {"durable": False}, lock, unlock)
        unlock()
