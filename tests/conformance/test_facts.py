"""What a store says of itself, what waits in it, and a namespace of which nothing is left."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from flowfabric.engine import Engine, Policy, Submission, Unavailable, connect
from flowfabric.testing import VirtualClock
from tests.scenarios import leased
from tests.stores import TestStore, opened


async def test_facts_tell_the_backend_the_schema_and_the_time(
    store: TestStore, engine: Engine, clock: VirtualClock
) -> None:
    facts = await engine.facts()
    assert facts.backend == ("sqlite" if store.name == "sqlite" else "postgresql")
    [newest] = await store.query("SELECT MAX(version) AS version FROM ff.migration")
    assert (facts.schema_version, facts.now) == (newest["version"], clock.now())
    assert set(facts.settings) == (
        {"journal_mode", "synchronous"}
        if store.name == "sqlite"
        else {"fsync", "full_page_writes", "synchronous_commit"}
    )
    assert all(facts.settings.values()) and facts.version[0].isdigit()


async def test_facts_of_memory_are_told_too() -> None:
    async with connect(":memory:") as engine:
        facts = await engine.facts()
    assert (facts.backend, facts.settings) == ("sqlite", {"journal_mode": "memory"}) and facts.schema_version > 0


async def test_backlog_counts_what_waits_by_lane_kind_and_capabilities(engine: Engine) -> None:
    await engine.executions.submit_many([Submission(kind="resize", lane="media", requires=["gpu"])] * 3)
    await engine.executions.submit("mail")
    await engine.executions.submit("mail", delay="1h")
    await leased(engine, kind="done")
    found = [(item.lane, item.kind, item.requires, item.waiting.number) for item in await engine.backlog()]
    assert found == [("default", "mail", (), 1), ("media", "resize", ("gpu",), 3)]
    assert all(item.waiting.exact for item in await engine.backlog())
    assert await engine.within("other").backlog() == []


async def test_backlog_stops_counting_at_a_thousand(engine: Engine) -> None:
    await engine.executions.submit_many([Submission(kind="many")] * 1000)
    [full] = await engine.backlog()
    await engine.executions.submit("many")
    [more] = await engine.backlog()
    assert [(item.waiting.number, item.waiting.exact) for item in (full, more)] == [(1000, True), (1000, False)]


async def test_nothing_is_left_of_a_scratch_namespace(store: TestStore, engine: Engine) -> None:
    kept = await leased(engine, key="kept")
    before = await tables(store)
    async with engine.scratch() as scratch:
        assert scratch.namespace.startswith("scratch-")
        lease = await leased(scratch, key="one", policy=Policy(retention="1h"))
        await scratch.leases.complete(lease.fence, b"out")
        await scratch.executions.submit("waits")
        assert await tables(store) != before
    assert await tables(store) == before
    assert (await engine.executions.describe(kept.execution_id)).id == kept.execution_id


async def test_a_scratch_namespace_goes_when_its_block_fails(store: TestStore, engine: Engine) -> None:
    before = await tables(store)

    async def broken() -> None:
        async with engine.scratch() as scratch:
            await scratch.executions.submit("waits")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await broken()
    assert await tables(store) == before


async def test_keys_tell_whether_their_secret_is_known(store: TestStore, tmp_path: Path) -> None:
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


async def test_a_look_does_not_change_a_file_without_a_store(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    file.write_bytes(b"")
    with pytest.raises(Unavailable) as refused:
        await connect(str(file), migrate=False)
    assert refused.value.code == "schema_outdated" and "holds no store" in refused.value.message
    assert await asyncio.to_thread(os.listdir, tmp_path) == ["other.db"] and file.read_bytes() == b""


async def tables(store: TestStore) -> list[int]:
    """How many rows the tables have that a scratch namespace could leave something in."""
    names = ("execution", "attempt", "event", "route", "purged", "submission_key")
    found = await store.queries([f"SELECT COUNT(*) AS rows FROM ff.{name}" for name in names])
    return [rows[0]["rows"] for rows in found]
