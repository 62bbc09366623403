"""`submit`, `list`, `show` and `explain`."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from flowfabric.engine import Lease, Step, connect
from tests.end_to_end.cli.shell import Shell
from tests.scenarios import leased
from tests.stores import TestStore, opened

TASKS = """
from flowfabric import App
app = App()

@app.task(lane="payments", retries=7)
async def refund(order: int, note: str = "none") -> str:
    return note
"""


async def submitted(shell: Shell, *words: str) -> str:
    said = await shell.run("submit", *words)
    assert (said.code, said.error) == (0, "")
    return said.lines[0]


def stores(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("*.db")]


async def test_what_is_submitted_is_stored_as_it_was_told(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        id_ = await submitted(
            shell, "refund", '{ "order": 7 }', "--lane", "payments", "--priority", "9", "--tag", "team.owner=ada",
            "--requires", "gpu", "--signal", "stop", "--retries", "1", "--delay", "1h", "--deadline", "2h",
        )  # fmt: skip
        found = await engine.executions.describe(id_)
    assert (found.kind, found.payload, found.lane, found.priority) == ("refund", b'{"order":7}', "payments", 9)
    assert (found.tags, found.requires, found.policy.max_retries) == ({"team.owner": "ada"}, ("gpu",), 1)
    assert (found.state, [item.key for item in found.waitpoints]) == ("delayed", ["stop"])
    assert found.deadline_at is not None


async def test_a_key_stores_once_and_a_contradiction_is_refused(store: TestStore, shell: Shell) -> None:
    async with opened(store):
        pass
    first = json.loads(await submitted(shell, "mail", "1", "--key", "k", "--json"))
    again = json.loads(await submitted(shell, "mail", "1", "--key", "k", "--json"))
    assert first["created"] and again == {"id": first["id"], "created": False}
    assert await submitted(shell, "mail", "1", "--key", "k") == f"{first['id']} (it was stored before)"
    said = await shell.run("submit", "mail", "2", "--key", "k")
    assert said.code == 4 and "idempotency_mismatch" in said.error


async def test_input_may_come_from_a_file_or_standard_input(
    store: TestStore, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "input.json"
    file.write_text('{"from": "file"}')
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"from": "pipe"}')))
    async with opened(store) as engine:
        ids = [await submitted(shell, "mail", source) for source in (f"@{file}", "-")]
        inputs = [(await engine.executions.describe(id_)).payload for id_ in ids]
    assert inputs == [b'{"from":"file"}', b'{"from":"pipe"}']


async def test_an_app_says_how_its_tasks_are_submitted(
    store: TestStore, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"shop_{uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    async with opened(store) as engine:
        id_ = await submitted(shell, "refund", '{"order": 7}', "--app", f"{name}:app", "--priority", "3")
        found = await engine.executions.describe(id_)
    assert (found.lane, found.policy.max_retries, found.priority) == ("payments", 7, 3)
    assert json.loads(found.payload) == {"order": 7, "note": "none"}
    for words, part in ((["refund", '{"order": "x"}'], "invalid_input"), (["refnd", "{}"], "it has refund")):
        said = await shell.run("submit", *words, "--app", f"{name}:app")
        assert (said.code, len(said.error.splitlines())) == (2, 1) and part in said.error


async def test_what_goes_by_an_app_goes_to_the_store_of_the_app(
    bare: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"shop_{uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(TASKS.replace("App()", "App('own.db', namespace='shop')"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    words = ["refund", '{"order": 7}', "--app", f"{name}:app"]
    said = await bare.run("submit", *words)
    assert said.code == 5 and "own.db; check it" in said.error
    assert stores(tmp_path) == []
    async with connect("own.db", namespace="shop") as engine:
        found = await engine.executions.describe(await submitted(bare, *words))
    assert (found.kind, stores(tmp_path)) == ("refund", ["own.db"])
    for option, part in (("--store=x.db", "own.db"), ("--namespace=x", "'shop'")):
        said = await bare.run("submit", *words, option)
        assert (said.code, len(said.error.splitlines())) == (2, 1) and part in said.error


@pytest.mark.parametrize(
    ("ends", "code", "out", "error"),
    [("well", 0, ['{"ok": true}'], ""), ("badly", 1, [], "ended failed: no money"), ("never", 6, [], "not ended yet")],
)
async def test_waiting_prints_the_result_and_tells_a_bad_end(
    store: TestStore, shell: Shell, ends: str, code: int, out: list[str], error: str
) -> None:
    async with opened(store) as engine:
        timeout = ["--timeout", "200ms"] if ends == "never" else ["--timeout", "60s"]
        waiting = asyncio.create_task(shell.run("submit", "mail", "--wait", *timeout))
        leases: list[Lease] = []
        with engine.leases.watch(["default"]) as work:
            while ends != "never" and not leases:
                leases = await engine.leases.claim(["default"], "w1")
                if not leases:
                    await work.wait()
        if ends == "well":
            await engine.leases.complete(leases[0].fence, b'{"ok":true}')
        elif ends == "badly":
            await engine.leases.fail(leases[0].fence, "no money", failure_class="permanent")
        said = await asyncio.wait_for(waiting, 90)
    assert (said.code, said.lines) == (code, out)
    assert error in said.error and len(said.error.splitlines()) <= 1


async def test_lists_are_filtered_and_go_on_by_a_cursor(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        for number in range(5):
            await engine.executions.submit("mail", tags={"team.n": str(number)})
        await leased(engine, kind="other")
    said = await shell.run("list", "--kind", "mail", "--limit", "2", "--json")
    assert len(said.lines) == 2
    cursor = said.error.removeprefix("more: --cursor ").strip()
    rest = await shell.run("list", "--kind", "mail", "--limit", "5", "--cursor", cursor, "--json")
    assert len({json.loads(line)["id"] for line in said.lines + rest.lines}) == 5
    assert len((await shell.run("list", "--all", "--json")).lines) == 6
    assert len((await shell.run("list", "--tag", "team.n=3", "--json")).lines) == 1
    assert len((await shell.run("list", "--state", "active", "--since", "1h", "--json")).lines) == 1
    assert (await shell.run("list", "--until", "2020-01-01")).error == "no executions match\n"


async def test_everything_about_an_execution_is_shown(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        lease = await leased(engine, payload=b'{"order":7}')
        await engine.leases.checkpoint(lease.fence, [Step("charge", b'"paid"')])
        await engine.leases.fail(lease.fence, "declined\x1b[2J", failure_class="permanent")
        id_ = str(lease.execution_id)
    said = await shell.run("show", id_, "--steps")
    text = "\n".join(said.lines)
    assert said.code == 0 and r"declined\x1b[2J" in text and "\x1b" not in text
    assert '{"order": 7}' in text and "ended_failure" in text and "charge" in text
    [line] = (await shell.run("show", id_, "--steps", "--json")).lines
    found = json.loads(line)
    assert (found["payload"], found["outcome"]["state"], found["steps"][0]["payload"]) == (
        {"order": 7},
        "failed",
        "paid",
    )
    assert found["vector"]["public_state"] == "failed"


async def test_explain_is_a_sentence_or_its_facts(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        id_ = str((await engine.executions.submit("mail")).id)
    said = await shell.run("explain", id_)
    assert said.code == 0 and said.lines[0].startswith("It waits for a worker on lane 'default'")
    [line] = (await shell.run("explain", id_, "--json")).lines
    assert json.loads(line)["facts"]["live_workers"] == 0
