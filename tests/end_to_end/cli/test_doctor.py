"""`doctor`: says what is wrong with a store, and what to do."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from flowfabric.cli.findings import (
    Surroundings,
    judge_clock,
    judge_durability,
    judge_keys,
    judge_lanes,
    judge_wakeups,
    judge_workers,
)
from flowfabric.engine import (
    Backlog,
    EventsStatus,
    InvalidRequest,
    KeyState,
    KeyView,
    LaneState,
    ListenerStatus,
    StoreFacts,
    Tally,
    Worker,
    WorkerId,
)
from tests.end_to_end.cli.shell import Shell
from tests.scenarios import leased
from tests.stores import TestStore, opened

NOW = datetime(2031, 5, 1, 8, 0, tzinfo=UTC)
POSTGRES = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}
WORKER = Worker(
    namespace="default", id=WorkerId("w1", "w1-1"), lanes=("default",), capabilities=("cpu",), version="1", host="h",
    slots=2, busy=2, ttl=timedelta(minutes=1), registered_at=NOW, seen_at=NOW, expires_at=NOW + timedelta(minutes=1),
)  # fmt: skip


def facts(backend: str = "postgresql", version: str = "18.1", **settings: str) -> StoreFacts:
    return StoreFacts(backend=backend, version=version, schema_version=5, settings=POSTGRES | settings, now=NOW)


def around(**seen: object) -> Surroundings:
    status = EventsStatus(None, ListenerStatus("listening", 1.0, 1.0, 0, 0, 0))
    usual = {
        "facts": facts(), "skew": timedelta(0), "keys": (), "status": status, "now": NOW, "workers": [WORKER],
        "lanes": {}, "backlog": [],
    }  # fmt: skip
    return Surroundings(**(usual | seen))  # type: ignore[arg-type]


def waits(lane: str = "default", *requires: str) -> Backlog:
    return Backlog(lane=lane, kind="resize", requires=requires, waiting=Tally(3, True))


def test_a_server_that_may_lose_work_is_wrong() -> None:
    assert [item.verdict for item in judge_durability(around())] == ["ok"]
    [found] = judge_durability(around(facts=facts(fsync="off")))
    assert found.verdict == "wrong" and "fsync is off" in found.text and found.advice


def test_an_old_sqlite_is_named_and_a_file_without_its_log_is_wrong() -> None:
    file = facts("sqlite", "3.40.1", journal_mode="wal")
    assert [item.subject for item in judge_durability(around(facts=file))] == ["durability", "sqlite"]
    [found] = judge_durability(around(facts=facts("sqlite", "3.51.3", journal_mode="delete")))
    assert found.verdict == "wrong"


@pytest.mark.parametrize(("seconds", "verdict"), [(0, "ok"), (-0.9, "ok"), (5, "warning"), (-60, "wrong")])
def test_clocks_may_differ_a_little(seconds: float, verdict: str) -> None:
    [found] = judge_clock(around(skew=timedelta(seconds=seconds)))
    assert found.verdict == verdict and bool(found.advice) is (verdict != "ok")


def test_a_key_whose_secret_is_missing_is_wrong() -> None:
    old = KeyView("old", KeyState.VERIFYING, NOW, NOW, NOW, True, False)
    new = KeyView("new", KeyState.ACTIVE, NOW, None, None, True)
    assert [item.verdict for item in judge_keys(around(keys=(new,)))] == ["ok"]
    [found] = judge_keys(around(keys=(new, old)))
    assert found.verdict == "wrong" and "old" in found.text
    [found] = judge_keys(around(keys=InvalidRequest("invalid_key_file", "line 2")))
    assert found.verdict == "wrong" and "line 2" in found.text


def test_a_line_for_hints_that_is_not_there_is_a_warning() -> None:
    for mode in ("polling", "broken", "starting"):
        [found] = judge_wakeups(around(status=EventsStatus(None, ListenerStatus(mode, None, None, 0, 0, 0))))
        assert (found.verdict, bool(found.advice)) == ("warning", True)
    since = NOW - timedelta(minutes=5)
    [_, held] = judge_wakeups(around(status=EventsStatus(since, ListenerStatus("listening", 0, 0, 0, 0, 0))))
    assert held.verdict == "warning" and "07:55" in held.text
    loaded = EventsStatus(since, ListenerStatus("listening", 0, 0, 0, 0, 0), from_elsewhere=True)
    [_, lost] = judge_wakeups(around(status=loaded))
    assert lost.verdict == "wrong" and "dump" in lost.text and "deploying.md" in lost.advice


def test_work_that_nobody_takes_is_a_warning_with_what_to_start() -> None:
    assert [item.verdict for item in judge_lanes(around(backlog=[waits("default", "cpu")]))] == ["ok"]
    for seen, advice in (
        (around(backlog=[waits("media")]), "--lane media"),
        (around(backlog=[waits("default", "gpu")]), "--capability gpu"),
        (around(backlog=[waits()], lanes={"default": LaneState.PAUSED}), "lanes resume default"),
        (around(backlog=[waits()], workers=[]), "flowfabric worker"),
    ):
        [found] = judge_lanes(seen)
        assert found.verdict == "warning" and advice in found.advice
    assert [item.verdict for item in judge_workers(around(backlog=[waits()]))] == ["ok", "warning"]
    assert [item.verdict for item in judge_workers(around(workers=[]))] == ["warning"]


async def test_a_store_is_looked_at_as_a_whole(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        await engine.executions.submit("resize", requires=["gpu"])
        await engine.workers.register("w1", ["default"], slots=4)
        await engine.waitpoints.create((await leased(engine)).fence, "k")
        said = await shell.run("doctor", "--json")
    found = {item["subject"]: item for item in map(json.loads, said.lines)}
    # The test server does not wait for its disk, which is what doctor is for.
    assert said.code == (0 if store.name == "sqlite" else 1)
    assert found["durability"]["verdict"] == ("ok" if store.name == "sqlite" else "wrong")
    assert [found[name]["verdict"] for name in ("store", "schema", "clock", "keys", "wake-ups", "workers")] == [
        "ok"
    ] * 6
    assert found["lanes"]["verdict"] == "warning" and "--capability gpu" in found["lanes"]["advice"]


async def test_a_store_that_cannot_be_used_is_told_with_advice(bare: Shell, tmp_path: Path) -> None:
    said = await bare.run("--store", str(tmp_path / "none.db"), "doctor")
    assert said.code == 5 and said.lines[0].startswith("wrong    store")
    assert "flowfabric migrate" in "\n".join(said.lines)
    assert len(said.error.splitlines()) == 1


async def test_a_key_file_that_lost_a_line_is_found(
    store: TestStore, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    monkeypatch.setenv("FLOWFABRIC_KEY_FILE", str(file))
    for text in (f"first={'ab' * 32}", f"second={'cd' * 32}\nfirst={'ab' * 32}"):
        file.write_text(text)
        async with opened(store) as engine:
            await engine.waitpoints.create((await leased(engine)).fence, "k")
    file.write_text(f"second={'cd' * 32}")
    said = await shell.run("doctor", "--json")
    [keys] = [item for item in map(json.loads, said.lines) if item["subject"] == "keys"]
    assert (said.code, keys["verdict"]) == (1, "wrong") and "first" in keys["text"]
    file.write_text("first=short")
    said = await shell.run("doctor")
    assert said.code == 2 and len(said.error.splitlines()) == 1 and "short" not in said.error
