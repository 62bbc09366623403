"""Tests of store_info, the backlog, temporary namespaces and key listings."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from flowfabric.engine import Engine, Policy, Submission, Unavailable, connect
from flowfabric.testing import VirtualClock
from tests.scenarios import leased
from tests.stores import TestStore, opened


async def test_store_info_has_backend_schema_and_time(store: TestStore, engine: Engine, clock: VirtualClock) -> None:
    info = await engine.store_info()
    assert info.backend == ("sqlite" if store.name == "sqlite" else "postgresql")
    [newest] = await store.query("SELECT MAX(version) AS version FROM ff.migration")
    assert (info.schema_version, info.now) == (newest["version"], clock.now())
    assert set(info.settings) == (
        {"journal_mode", "synchronous", "readable_by_others"}
        if store.name == "sqlite"
        else {"fsync", "full_page_writes", "synchronous_commit", "tcp_keepalives_idle", "reached_by"}
    )
    assert all(info.settings.values()) and info.version[0].isdigit()


async def test_store_info_of_a_memory_store_has_its_settings() -> None:
    async with connect(":memory:") as engine:
        info = await engine.store_info()
    assert (info.backend, info.settings) == ("sqlite", {"journal_mode": "memory"}) and info.schema_version > 0


async def test_backlog_counts_waiting_work_by_lane_kind_and_capabilities(engine: Engine) -> None:
    await engine.executions.submit_many([Submission(kind="resize", lane="media", requires=["gpu"])] * 3)
    await engine.executions.submit("mail")
    await engine.executions.submit("mail", delay="1h")
    await leased(engine, kind="done")
    backlog = [(entry.lane, entry.kind, entry.requires, entry.waiting.value) for entry in await engine.backlog()]
    assert backlog == [("default", "mail", (), 1), ("media", "resize", ("gpu",), 3)]
    assert all(entry.waiting.is_exact for entry in await engine.backlog())
    assert await engine.for_namespace("other").backlog() == []


async def test_backlog_stops_counting_at_a_thousand(engine: Engine) -> None:
    await engine.executions.submit_many([Submission(kind="many")] * 1000)
    [full] = await engine.backlog()
    await engine.executions.submit("many")
    [more] = await engine.backlog()
    assert [(entry.waiting.value, entry.waiting.is_exact) for entry in (full, more)] == [(1000, True), (1000, False)]


async def test_temporary_namespace_leaves_no_rows(store: TestStore, engine: Engine) -> None:
    kept_lease = await leased(engine, key="kept")
    before = await count_rows(store)
    async with engine.temporary_namespace() as scratch:
        assert scratch.namespace.startswith("scratch-")
        lease = await leased(scratch, key="one", policy=Policy(retention="1h"))
        await scratch.leases.complete(lease.fence, b"out")
        await scratch.executions.submit("waits")
        assert await count_rows(store) != before
    assert await count_rows(store) == before
    assert (await engine.executions.describe(kept_lease.execution_id)).id == kept_lease.execution_id


async def test_temporary_namespace_is_removed_when_its_block_fails(store: TestStore, engine: Engine) -> None:
    before = await count_rows(store)

    async def fail_in_namespace() -> None:
        async with engine.temporary_namespace() as scratch:
            await scratch.executions.submit("waits")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_in_namespace()
    assert await count_rows(store) == before


async def test_key_list_shows_whether_the_secret_is_known(store: TestStore, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text(f"first={'ab' * 32}\n")
    new.write_text(f"second={'cd' * 32}\nfirst={'ab' * 32}\n")
    for file in (old, new):
        async with opened(store, key_file=str(file)) as engine:
            await engine.waitpoints.create((await leased(engine)).fence, "approval")
            assert all(key.known for key in await engine.keys.list())
    new.write_text(f"second={'cd' * 32}\n")
    async with opened(store, key_file=str(new)) as engine:
        assert {key.kid: key.known for key in await engine.keys.list()} == {"first": False, "second": True}


async def test_connect_without_migration_does_not_change_an_empty_file(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    file.write_bytes(b"")
    with pytest.raises(Unavailable) as refused:
        await connect(str(file), migrate=False)
    assert refused.value.code == "store_not_found" and "contains no store" in refused.value.message
    assert await asyncio.to_thread(os.listdir, tmp_path) == ["other.db"] and file.read_bytes() == b""


async def count_rows(store: TestStore) -> list[int]:
    """Return the row counts of the tables in which a temporary namespace could leave rows."""
    names = ("execution", "attempt", "event", "route", "purged", "submission_key")
    results = await store.queries([f"SELECT COUNT(*) AS rows FROM ff.{name}" for name in names])
    return [rows[0]["rows"] for rows in results]
