"""Commands for the whole store: lanes, flows, waitpoints, keys, workers, stats, migrate, bench."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from flowfabric.engine import ChildSubmission, Graph, NewWaitpoint, Single, Submission
from tests.end_to_end.cli.shell import Shell
from tests.migration.next_release import next_release
from tests.scenarios import leased
from tests.stores import TestStore, opened

SECRET = "ab" * 32
LONG_AGO = {"sqlite": "1", "postgres": "'2001-01-01'"}


async def test_lanes_are_listed_paused_resumed_and_drained(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        assert (await shell.run("lanes")).error == "No lane has been used yet.\n"
        await engine.executions.submit("mail", lane="post")
        await engine.workers.register("w1", ["post"])
        output = await shell.run("lanes", "pause", "post", "--reason", "strike", "--principal", "ada")
        assert output.lines == ["Lane post is paused: it does not hand out work."]
        row = (await shell.run("lanes")).lines[1]
        assert row.split()[:6] == ["post", "paused", "1", "1", "by", "ada"] and row.endswith(": strike")
        [line] = (await shell.run("lanes", "list", "--json")).lines
        view = json.loads(line)
        assert view.pop("changed_at").startswith("20")
        waiting = {"value": 1, "is_exact": True}
        assert view == {"lane": "post", "state": "paused", "waiting": waiting, "workers": 1, "principal": "ada"} | {
            "reason": "strike"
        }
        assert (await shell.run("lanes", "drain", "post")).code == 0
        output = await shell.run("submit", "mail", "--lane", "post")
        assert output.code == 4 and "lane" in output.error
        await shell.run("lanes", "resume", "post")
        assert [(lane.lane, lane.state) for lane in (await engine.lanes.list()).items] == [("post", "active")]


async def test_lanes_and_workers_are_listed_in_pages(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        for name in ("one", "three", "two"):
            await engine.executions.submit("job", lane=name)
            await engine.workers.register(name, [name])
        for command in ("lanes", "workers"):
            first = await shell.run(command, "list", "--limit", "2")
            assert [line.split()[0] for line in first.lines[1:]] == ["one", "three"]
            cursor = first.error.split()[-1]
            second = await shell.run(command, "list", "--limit", "2", "--cursor", cursor)
            assert ([line.split()[0] for line in second.lines[1:]], second.error) == (["two"], "")


async def test_leases_past_their_time_are_listed(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        lease = await leased(engine, worker="gone")
        assert (await shell.run("leases")).error == "No lease is past its time.\n"
        at = LONG_AGO[store.name]
        await store.query(f"UPDATE ff.execution SET lease_check_at = {at}, lease_expires_at = {at}")
        row = (await shell.run("leases")).lines[1].split()
        assert row[0] == str(lease.execution_id) and row[2] == "gone" and row[3].endswith("d")


async def test_a_flow_is_listed_and_drawn(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        graph = Graph("nightly")
        graph.add("load", "job", after=[graph.add("extract", "job")])
        id_ = str((await engine.flows.submit(graph)).flow_id)
    assert "2 members" not in (await shell.run("flows")).lines[1] and id_ in (await shell.run("flows")).lines[1]
    output = await shell.run("flows", id_)
    assert [line.split()[-2:] for line in output.lines[-2:]] == [["extract", "waiting"], ["load", "blocked"]]
    [line] = (await shell.run("flows", id_, "--json")).lines
    assert [member["member_name"] for member in json.loads(line)["members"]] != []
    assert (await shell.run("flows", "--state", "failed", "--json")).lines == []


async def test_children_are_drawn_below_their_parent(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        lease = await leased(engine, kind="parent")
        children = [ChildSubmission(key, Submission(kind="child")) for key in ("one", "two")]
        await engine.leases.submit_children(lease.fence, children)
        output = await shell.run("flows", str(lease.execution_id))
    assert output.code == 0 and "parent" in output.lines[-3] and output.lines[-1].startswith("└─ ● ")


async def test_suspended_executions_and_their_waitpoints_are_listed(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        assert (await shell.run("waitpoints")).error == "No execution is suspended.\n"
        lease = await leased(engine)
        assert (await shell.run("waitpoints", str(lease.execution_id))).error == "The execution has no waitpoints.\n"
        await engine.leases.suspend(lease.fence, [NewWaitpoint("sign-off")], Single("sign-off"))
    assert str(lease.execution_id) in (await shell.run("waitpoints")).lines[1]
    [line] = (await shell.run("waitpoints", str(lease.execution_id), "--json")).lines
    assert (json.loads(line)["key"], json.loads(line)["state"]) == ("sign-off", "active")
    assert "There may be more" in (await shell.run("waitpoints", "--limit", "1")).error


async def test_keys_are_seeded_and_rotated_without_showing_a_secret(
    store: TestStore, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    async with opened(store) as engine:
        assert "no key yet" in (await shell.run("keys")).error
        assert (await shell.run("keys", "seed", "first", "--secret-file", str(file))).lines == [
            "first is the active key."
        ]
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"cd" * 32)))
        output = await shell.run("keys", "seed", "first", "--secret-file", "-")
        assert (output.code, output.lines) == (1, ["first already exists with another secret."])
        file.write_text(SECRET[1:])
        output = await shell.run("keys", "rotate", "second", "--secret-file", str(file), "--yes")
        assert output.code == 2 and "invalid_secret_hex" in output.error and SECRET[1:] not in output.error
        output = await shell.run("keys", "rotate", "--yes", "--principal", "ada", "--json")
        generated_kid = json.loads(output.lines[0])["kid"]
        assert (await shell.run("keys", "rotate", generated_kid, "--yes")).lines == [
            f"Nothing to do: {generated_kid} is the active key."
        ]
        assert (await shell.run("keys", "rotate", "first", "--yes")).code == 4
        assert [key.kid for key in await engine.keys.list()] == [generated_kid, "first"]
    output = await shell.run("keys", "list")
    assert SECRET not in "\n".join(output.lines) and [line.split()[1] for line in output.lines[1:]] == [
        "active",
        "verifying",
    ]


async def test_workers_are_listed_and_removed(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        assert "No live worker" in (await shell.run("workers")).error
        await engine.workers.register("w1", ["post"], capabilities=["gpu"], slots=4)
        assert (await shell.run("workers")).lines[1].startswith("w1")
        assert (await shell.run("workers", "list", "--lane", "other", "--json")).lines == []
        assert (await shell.run("workers", "remove", "w1", "--yes")).code == 0
        assert (await engine.workers.list()).items == ()


async def test_stats_count_executions_by_state_and_lane(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        await engine.executions.submit("mail", lane="post")
        await engine.leases.complete((await leased(engine)).fence)
    output = await shell.run("stats")
    assert [line.split()[:2] for line in output.lines[1:4]] == [["waiting", "1"], ["completed", "1"], ["all", "2"]]
    assert output.lines[-1] == "0 live workers, 0 of 0 slots busy"
    [line] = (await shell.run("stats", "--json")).lines
    stats = json.loads(line)
    assert stats["executions"]["waiting"] == {"value": 1, "is_exact": True}
    assert stats["backlog"][0]["lane"] == "post"


async def test_migrate_creates_upgrades_and_checks_the_store(store: TestStore, shell: Shell) -> None:
    if hasattr(store, "path"):
        store.path.unlink()
    else:
        await store.drop()  # type: ignore[attr-defined]
    output = await shell.run("migrate", "--check")
    assert (output.code, output.lines) == (1, ["There is no store yet: run flowfabric migrate."])
    assert (await shell.run("migrate")).lines[0].startswith("Created the store with schema version ")
    assert "already at version" in (await shell.run("migrate")).lines[0]
    output = await shell.run("migrate", "--check", "--json")
    report = json.loads(output.lines[0])
    assert output.code == 0 and report["present"] is True
    version = report["version"]
    with next_release():
        output = await shell.run("migrate", "--check")
        assert (output.code, output.lines) == (1, [f"The schema is at version {version}: run flowfabric migrate."])
        assert (await shell.run("list")).code == 5
        output = await shell.run("migrate")
        assert output.lines == [f"Migrated the schema from version {version} to {version + 1}."]
        assert (await shell.run("migrate", "--check")).code == 0
    assert (await shell.run("list")).code == 5


async def test_bench_prints_figures_and_deletes_its_executions(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        kept = (await engine.executions.submit("mail")).id
        output = await shell.run("bench", "-n", "25", "--batch", "10", "--json")
        figures = json.loads(output.lines[0])["figures"]
        assert [figure["name"] for figure in figures] == ["round trip", "submit", "claim", "complete"]
        assert all(figure["per_second"] > 0 for figure in figures)
        assert [row["id"] for row in await store.query("SELECT id FROM ff.execution")] != []
        assert await store.query("SELECT namespace FROM ff.execution WHERE namespace <> 'default'") == []
        assert await store.query("SELECT namespace FROM ff.event") == []
        assert await store.query("SELECT namespace FROM ff.route WHERE namespace <> 'default'") == []
        assert (await engine.executions.describe(kept)).state == "waiting"
    assert (await shell.run("bench", "-n", "1")).lines[0].split() == [
        "WHAT",
        "PER",
        "SECOND",
        "MEDIAN",
        "MS",
        "WORST",
        "MS",
    ]
