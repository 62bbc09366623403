"""`doctor` reports problems of a store and how to fix them."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from flowfabric.cli.commands.doctor import (
    DoctorContext,
    check_clock,
    check_connection,
    check_dead_rows,
    check_durability,
    check_keys,
    check_lanes,
    check_notifications,
    check_workers,
)
from flowfabric.engine import (
    ApproximateCount,
    Backlog,
    EventsStatus,
    InvalidRequest,
    KeyState,
    KeyView,
    LaneInfo,
    LaneState,
    ListenerStatus,
    StoreInfo,
    WorkerId,
    WorkerInfo,
)
from tests.end_to_end.cli.shell import Shell
from tests.scenarios import leased
from tests.stores import TestStore, opened

NOW = datetime(2031, 5, 1, 8, 0, tzinfo=UTC)
POSTGRES = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}
WORKER = WorkerInfo(
    namespace="default", id=WorkerId("w1", "w1-1"), lanes=("default",), capabilities=("cpu",), version="1", host="h",
    slots=2, busy=2, ttl=timedelta(minutes=1), registered_at=NOW, seen_at=NOW, expires_at=NOW + timedelta(minutes=1),
)  # fmt: skip

PAUSED_LANE = LaneInfo(lane="default", state=LaneState.PAUSED, principal="ann", reason="provider outage")


def make_store_info(backend: str = "postgresql", version: str = "18.1", **settings: str) -> StoreInfo:
    return StoreInfo(backend=backend, version=version, schema_version=5, settings=POSTGRES | settings, now=NOW)


def make_context(**overrides: object) -> DoctorContext:
    status = EventsStatus(None, ListenerStatus("listening", 1.0, 1.0, 0, 0, 0))
    defaults = {
        "store_info": make_store_info(), "skew": timedelta(0), "keys": (), "status": status, "now": NOW,
        "workers": [WORKER], "lanes": {}, "backlog": [],
    }  # fmt: skip
    return DoctorContext(**(defaults | overrides))  # type: ignore[arg-type]


def make_backlog(lane: str = "default", *requires: str) -> Backlog:
    return Backlog(lane=lane, kind="resize", requires=requires, waiting=ApproximateCount(3, True))


def test_server_without_fsync_is_wrong() -> None:
    assert [finding.verdict for finding in check_durability(make_context())] == ["ok"]
    [finding] = check_durability(make_context(store_info=make_store_info(fsync="off")))
    assert finding.verdict == "wrong" and "fsync is off" in finding.text and finding.advice


def test_role_that_turns_synchronous_commit_off_is_a_warning() -> None:
    lax = replace(make_store_info(), lax=('role "app"', 'database "shop"'))
    [durable, finding] = check_durability(make_context(store_info=lax))
    assert (durable.verdict, finding.verdict) == ("ok", "warning")
    assert 'role "app", database "shop"' in finding.text and "submit_in_transaction" in finding.text and finding.advice


def test_old_sqlite_is_named_and_a_file_without_a_wal_is_wrong() -> None:
    file = make_store_info("sqlite", "3.40.1", journal_mode="wal")
    assert [finding.subject for finding in check_durability(make_context(store_info=file))] == ["durability", "sqlite"]
    [finding] = check_durability(make_context(store_info=make_store_info("sqlite", "3.51.3", journal_mode="delete")))
    assert finding.verdict == "wrong"


def test_settings_of_a_pooler_are_named() -> None:
    [finding] = check_connection(make_context(store_info=make_store_info(reached_by="pooler")))
    assert finding.verdict == "ok" and "tcp_user_timeout = 20000" in finding.advice and "poolers.md" in finding.advice


def test_server_that_sends_no_keepalives_is_a_warning() -> None:
    over_tcp = make_store_info(reached_by="tcp", tcp_keepalives_idle="10")
    assert [finding.verdict for finding in check_connection(make_context(store_info=over_tcp))] == ["ok"]
    silent = make_store_info(reached_by="tcp", tcp_keepalives_idle="0")
    [finding] = check_connection(make_context(store_info=silent))
    assert finding.verdict == "warning" and "vanishes" in finding.text and finding.advice
    assert not list(check_connection(make_context(store_info=make_store_info(reached_by="socket"))))


@pytest.mark.parametrize(("seconds", "verdict"), [(0, "ok"), (-0.9, "ok"), (5, "warning"), (-60, "wrong")])
def test_small_clock_skew_is_ok(seconds: float, verdict: str) -> None:
    [finding] = check_clock(make_context(skew=timedelta(seconds=seconds)))
    assert finding.verdict == verdict and bool(finding.advice) is (verdict != "ok")


def test_file_whose_time_is_ahead_is_a_warning() -> None:
    file = make_store_info("sqlite", "3.51.3", journal_mode="wal")
    [finding] = check_clock(make_context(store_info=file, skew=timedelta(hours=1)))
    assert finding.verdict == "warning" and "3600.0 s ahead" in finding.text and "clocks.md" in str(finding.advice)


def test_key_without_its_secret_is_wrong() -> None:
    old = KeyView("old", KeyState.VERIFYING, NOW, NOW, NOW, True, False)
    new = KeyView("new", KeyState.ACTIVE, NOW, None, None, True)
    assert [finding.verdict for finding in check_keys(make_context(keys=(new,)))] == ["ok"]
    [finding] = check_keys(make_context(keys=(new, old)))
    assert finding.verdict == "wrong" and "old" in finding.text
    [finding] = check_keys(make_context(keys=InvalidRequest("invalid_key_file", "line 2")))
    assert finding.verdict == "wrong" and "line 2" in finding.text


def test_missing_listener_is_a_warning() -> None:
    for mode in ("polling", "broken", "starting"):
        [finding] = check_notifications(
            make_context(status=EventsStatus(None, ListenerStatus(mode, None, None, 0, 0, 0)))
        )
        assert (finding.verdict, bool(finding.advice)) == ("warning", True)
    since = NOW - timedelta(minutes=5)
    [_, held] = check_notifications(
        make_context(status=EventsStatus(since, ListenerStatus("listening", 0, 0, 0, 0, 0)))
    )
    assert held.verdict == "warning" and "07:55" in held.text
    loaded = EventsStatus(since, ListenerStatus("listening", 0, 0, 0, 0, 0), is_restored=True)
    [_, lost] = check_notifications(make_context(status=loaded))
    assert lost.verdict == "wrong" and "dump" in lost.text and "deploying.md" in lost.advice


def test_backlog_without_a_matching_worker_is_a_warning_with_advice() -> None:
    assert [finding.verdict for finding in check_lanes(make_context(backlog=[make_backlog("default", "cpu")]))] == [
        "ok"
    ]
    for context, advice in (
        (make_context(backlog=[make_backlog("media")]), "--lane media"),
        (make_context(backlog=[make_backlog("default", "gpu")]), "--capability gpu"),
        (make_context(backlog=[make_backlog()], lanes={"default": PAUSED_LANE}), "lanes resume default"),
        (make_context(backlog=[make_backlog()], workers=[]), "flowfabric worker"),
        (make_context(backlog=[make_backlog()], workers=[replace(WORKER, kinds=("refund",))]), "has a task resize"),
    ):
        [finding] = check_lanes(context)
        assert finding.verdict == "warning" and advice in finding.advice
    [finding] = check_lanes(make_context(backlog=[make_backlog()], lanes={"default": PAUSED_LANE}))
    assert finding.text.endswith(': the lane is paused by ann ("provider outage")')
    assert [finding.verdict for finding in check_workers(make_context(backlog=[make_backlog()]))] == ["ok", "warning"]
    assert [finding.verdict for finding in check_workers(make_context(workers=[]))] == ["warning"]


def test_worker_that_missed_its_heartbeats_is_a_warning() -> None:
    silent = replace(WORKER, seen_at=NOW - timedelta(seconds=40))
    [warning, alive] = check_workers(make_context(workers=[silent, WORKER]))
    assert warning.verdict == "warning"
    assert warning.text.startswith("worker w1-1 has not been") and warning.text.endswith("since 2031-05-01 07:59:20")
    assert alive.text == "1 live worker, 2 of 2 slots busy"
    texts = [finding.text for finding in check_workers(make_context(workers=[silent]))]
    assert len(texts) == 2 and "no live worker" in texts[1]


async def test_doctor_checks_the_whole_store(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        await engine.executions.submit("resize", requires=["gpu"])
        await engine.workers.register("w1", ["default"], slots=4)
        await engine.waitpoints.create((await leased(engine)).fence, "k")
        output = await shell.run("doctor", "--json")
    findings = {finding["subject"]: finding for finding in map(json.loads, output.lines)}
    # The test server does not flush to disk, and doctor must report that.
    assert output.code == (0 if store.name == "sqlite" else 1)
    assert findings["durability"]["verdict"] == ("ok" if store.name == "sqlite" else "wrong")
    assert [findings[name]["verdict"] for name in ("store", "schema", "clock", "keys", "listener", "workers")] == [
        "ok"
    ] * 6
    assert findings["lanes"]["verdict"] == "warning" and "--capability gpu" in findings["lanes"]["advice"]


async def test_unusable_store_is_reported_with_advice(bare_shell: Shell, tmp_path: Path) -> None:
    output = await bare_shell.run("--store", str(tmp_path / "none.db"), "doctor")
    assert output.code == 5 and output.lines[0].startswith("wrong    store")
    assert "flowfabric migrate" in "\n".join(output.lines)
    assert len(output.error.splitlines()) == 1


async def test_key_file_with_a_missing_line_is_reported(
    store: TestStore, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    monkeypatch.setenv("FLOWFABRIC_KEY_FILE", str(file))
    for text in (f"first={'ab' * 32}", f"second={'cd' * 32}\nfirst={'ab' * 32}"):
        file.write_text(text)
        async with opened(store) as engine:
            await engine.waitpoints.create((await leased(engine)).fence, "k")
    file.write_text(f"second={'cd' * 32}")
    output = await shell.run("doctor", "--json")
    [keys] = [finding for finding in map(json.loads, output.lines) if finding["subject"] == "keys"]
    assert (output.code, keys["verdict"]) == (1, "wrong") and "first" in keys["text"]
    file.write_text("first=short")
    output = await shell.run("doctor")
    assert output.code == 2 and len(output.error.splitlines()) == 1 and "short" not in output.error


def test_many_dead_rows_are_a_warning_that_names_the_transaction() -> None:
    few, many = (replace(make_store_info(), dead_rows=number) for number in (150_000, 3_000_000))
    assert [finding.verdict for finding in check_dead_rows(make_context(store_info=few))] == ["ok"]
    [finding] = check_dead_rows(make_context(store_info=many))
    assert finding.verdict == "warning" and "3000000 dead rows" in finding.text and "vacuum=False" in finding.advice
    blocked = replace(many, vacuum_blockers=("the transaction of process 42 (ann, psql, idle in transaction)",))
    [finding] = check_dead_rows(make_context(store_info=blocked))
    assert finding.verdict == "warning" and "process 42 (ann" in finding.text and finding.advice
    assert not list(check_dead_rows(make_context(store_info=make_store_info("sqlite"))))
