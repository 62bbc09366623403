"""The commands `submit`, `list`, `show` and `explain`."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest

from flowfabric.cli.commands import show
from flowfabric.engine import Lease, Step, StepRetry, StepStatus, connect
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


async def submit(shell: Shell, *words: str) -> str:
    output = await shell.run("submit", *words)
    assert (output.code, output.error) == (0, "")
    return output.lines[0]


def list_stores(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("*.db")]


async def test_submit_stores_all_its_options(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        id_ = await submit(
            shell,
            "refund",
            '{ "order": 7 }',
            "--lane",
            "payments",
            "--priority",
            "9",
            "--tag",
            "team.owner=ada",
            "--requires",
            "gpu",
            "--signal",
            "stop",
            "--retries",
            "1",
            "--delay",
            "1h",
            "--deadline",
            "2h",
            "--creator",
            "ann",
        )
        execution = await engine.executions.describe(id_)
        assert "creator   ann" in (await shell.run("show", id_)).lines
    assert execution.creator == "ann"
    assert (execution.kind, execution.payload, execution.lane, execution.priority) == (
        "refund",
        b'{"order":7}',
        "payments",
        9,
    )
    assert (execution.tags, execution.requires, execution.policy.max_retries) == ({"team.owner": "ada"}, ("gpu",), 1)
    assert (execution.state, [waitpoint.key for waitpoint in execution.waitpoints]) == ("delayed", ["stop"])
    assert execution.deadline_at is not None


async def test_repeated_key_stores_one_execution_and_rejects_other_input(store: TestStore, shell: Shell) -> None:
    async with opened(store):
        pass
    first = json.loads(await submit(shell, "mail", "1", "--key", "k", "--json"))
    again = json.loads(await submit(shell, "mail", "1", "--key", "k", "--json"))
    assert first["created"] and again == {"id": first["id"], "created": False}
    assert await submit(shell, "mail", "1", "--key", "k") == f"{first['id']} (already submitted)"
    output = await shell.run("submit", "mail", "2", "--key", "k")
    assert output.code == 4 and "idempotency_mismatch" in output.error


async def test_input_is_read_from_a_file_or_standard_input(
    store: TestStore, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "input.json"
    file.write_text('{"from": "file"}')
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"from": "pipe"}')))
    async with opened(store) as engine:
        ids = [await submit(shell, "mail", source) for source in (f"@{file}", "-")]
        inputs = [(await engine.executions.describe(id_)).payload for id_ in ids]
    assert inputs == [b'{"from":"file"}', b'{"from":"pipe"}']


async def test_submit_with_app_uses_the_settings_of_the_task(
    store: TestStore, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"shop_{uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    async with opened(store) as engine:
        id_ = await submit(shell, "refund", '{"order": 7}', "--app", f"{name}:app", "--priority", "3")
        execution = await engine.executions.describe(id_)
    assert (execution.lane, execution.policy.max_retries, execution.priority) == ("payments", 7, 3)
    assert json.loads(execution.payload) == {"order": 7, "note": "none"}
    output = await shell.run("submit", "refnd", "--app", f"{name}:app")
    assert (output.code, len(output.error.splitlines())) == (2, 1) and "its tasks are refund" in output.error


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"order": "x"}', "order: Input should be a valid integer"),
        ("{}", "order: Field required"),
        ('{"order": 7, "nota": "x"}', "it has no parameter nota"),
        ("[7]", "Input should be an object"),
    ],
)
async def test_input_that_does_not_fit_the_task_is_refused_with_its_signature_and_an_example(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    name = f"shop_{uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    output = await shell.run("submit", "refund", text, "--app", f"{name}:app")
    assert (output.code, len(output.error.splitlines())) == (2, 1)
    assert f"invalid_input: INPUT does not fit refund(order: int, note: str = 'none') -> str: {why}" in output.error
    assert output.error.rstrip().endswith("""pass the parameters by name as JSON, such as '{"order": …}'""")
    assert "unhold" not in output.error


async def test_submit_with_app_uses_the_store_of_the_app(
    bare_shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"shop_{uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(TASKS.replace("App()", "App('own.db', namespace='shop')"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    words = ["refund", '{"order": 7}', "--app", f"{name}:app"]
    output = await bare_shell.run("submit", *words)
    assert output.code == 5 and "own.db; check the address" in output.error
    assert list_stores(tmp_path) == []
    async with connect("own.db", namespace="shop") as engine:
        execution = await engine.executions.describe(await submit(bare_shell, *words))
    assert (execution.kind, list_stores(tmp_path)) == ("refund", ["own.db"])
    for option, part in (("--store=x.db", "own.db"), ("--namespace=x", "'shop'")):
        output = await bare_shell.run("submit", *words, option)
        assert (output.code, len(output.error.splitlines())) == (2, 1) and part in output.error


@pytest.mark.parametrize(
    ("ending", "code", "out", "error"),
    [
        ("completed", 0, ['{"ok": true}'], ""),
        ("failed", 1, [], "failed: no money"),
        ("never", 6, [], "not ended yet"),
    ],
)
async def test_submit_with_wait_prints_the_result_or_the_failure(
    store: TestStore, shell: Shell, ending: str, code: int, out: list[str], error: str
) -> None:
    async with opened(store) as engine:
        timeout = ["--timeout", "200ms"] if ending == "never" else ["--timeout", "60s"]
        waiting = asyncio.create_task(shell.run("submit", "mail", "--wait", *timeout))
        leases: list[Lease] = []
        with engine.leases.watch(["default"]) as work:
            while ending != "never" and not leases:
                leases = await engine.leases.claim(["default"], "w1")
                if not leases:
                    await work.wait()
        if ending == "completed":
            await engine.leases.complete(leases[0].fence, b'{"ok":true}')
        elif ending == "failed":
            await engine.leases.fail(leases[0].fence, "no money", failure_class="permanent")
        output = await asyncio.wait_for(waiting, 90)
    assert (output.code, output.lines) == (code, out)
    assert error in output.error and len(output.error.splitlines()) <= 1


async def test_list_filters_and_continues_at_a_cursor(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        for number in range(5):
            await engine.executions.submit("mail", tags={"team.n": str(number)})
        await leased(engine, kind="other")
    output = await shell.run("list", "--kind", "mail", "--limit", "2", "--json")
    assert len(output.lines) == 2
    cursor = output.error.removeprefix("More: --cursor ").strip()
    rest = await shell.run("list", "--kind", "mail", "--limit", "5", "--cursor", cursor, "--json")
    assert len({json.loads(line)["id"] for line in output.lines + rest.lines}) == 5
    assert len((await shell.run("list", "--all", "--json")).lines) == 6
    assert len((await shell.run("list", "--tag", "team.n=3", "--json")).lines) == 1
    assert len((await shell.run("list", "--state", "active", "--since", "1h", "--json")).lines) == 1
    assert (await shell.run("list", "--until", "2020-01-01")).error == "No executions match.\n"


async def test_list_of_all_pages_accepts_an_age(
    store: TestStore, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command converts the age to a time only once, because a cursor is valid only with unchanged filters."""
    monkeypatch.setattr(show, "_PAGE_SIZE_FOR_ALL", 2)
    async with opened(store) as engine:
        for _ in range(5):
            await engine.executions.submit("mail")
    output = await shell.run("list", "--all", "--since", "1h", "--json")
    assert (output.code, len(output.lines), output.error) == (0, 5, "")


async def test_show_prints_the_details_of_an_execution(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        lease = await leased(engine, payload=b'{"order":7}')
        await engine.leases.checkpoint(lease.fence, [Step("charge", b'"paid"')])
        await engine.leases.fail(lease.fence, "declined\x1b[2J", failure_class="permanent")
        id_ = str(lease.execution_id)
    output = await shell.run("show", id_, "--steps")
    text = "\n".join(output.lines)
    assert output.code == 0 and r"declined\x1b[2J" in text and "\x1b" not in text
    assert '{"order": 7}' in text and "ended_failure" in text and "charge" in text
    [line] = (await shell.run("show", id_, "--steps", "--json")).lines
    execution = json.loads(line)
    assert (execution["payload"], execution["outcome"]["state"], execution["steps"][0]["value"]) == (
        {"order": 7},
        "failed",
        "paid",
    )
    assert execution["vector"]["public_state"] == "failed"


async def test_show_prints_values_tries_durations_and_errors_of_steps(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        lease = await leased(engine)
        error = '"error":{"type":"OSError","message":"down","category":"net","traceback":"File pay.py, line 3"}'
        retried = f'{{"due":"2099-01-01T00:00:00+00:00","retries":3,"tries":2,{error}}}'
        steps = [
            Step("look_up", b'[{"kind":"step","index":0,"ran":[1900000000000,2150]},{"sum": 7}]'),
            Step("pay", f'[{{"kind":"step","index":1,"facts":{retried}}},null]'.encode(), status=StepStatus.OPEN),
        ]
        at = datetime(2099, 1, 1, tzinfo=UTC)
        retry = StepRetry(step="pay", tries=2, max_tries=4, at=at, message="OSError: down", category="net")
        await engine.leases.retry_steps(lease.fence, [retry], steps)
        id_ = str(lease.execution_id)
    lines = (await shell.run("show", id_, "--steps")).lines
    [look_up] = [line for line in lines if " look_up " in line]
    assert look_up.split()[1:7] == ["look_up", "ok", "1", "2030-03-17", "17:46:40", "2.1s"]
    assert look_up.endswith('{"sum": 7}')
    [pay] = [line for line in lines if " pay " in line and "OSError" in line and "try 2" not in line]
    assert pay.split()[1:4] == ["pay", "open", "2"]
    assert lines[-2:] == ["pay: open; next try at 2099-01-01 00:00:00", "File pay.py, line 3"]
    [line] = (await shell.run("show", id_, "--steps", "--json")).lines
    first, second = json.loads(line)["steps"]
    assert (first["value"], first["took"], first["tries"]) == ({"sum": 7}, 2.15, 1)
    assert (second["error"]["message"], second["next_try_at"]) == ("down", "2099-01-01T00:00:00+00:00")
    assert "step pay, try 2 of 4: OSError: down" in "\n".join((await shell.run("list")).lines)
    assert "step_retry_scheduled" in "\n".join((await shell.run("history", id_)).lines)
    [explained] = (await shell.run("explain", id_, "--json")).lines
    assert json.loads(explained)["facts"]["retrying"][0]["step"] == "pay"


async def test_failure_that_was_overcome_is_no_current_fact(store: TestStore, shell: Shell) -> None:
    failure = "step pay, try 1 of 4: OSError: down"
    facts = '{"due":"2099-01-01T00:00:00+00:00","retries":3,"tries":1,"error":{"type":"OSError","message":"down"}}'
    payload = f'[{{"kind":"step","index":0,"facts":{facts}}},null]'.encode()
    at = datetime(2099, 1, 1, tzinfo=UTC)
    retry = StepRetry(step="pay", tries=1, max_tries=4, at=at, message="OSError: down", category="net")
    async with opened(store) as engine:
        lease = await leased(engine)
        await engine.leases.retry_steps(lease.fence, [retry], [Step("pay", payload, status=StepStatus.OPEN)])
        id_ = str(lease.execution_id)
        assert f"last failure: {failure}" in "\n".join((await shell.run("list")).lines)
        assert f"last failure  {failure} (net)" in (await shell.run("show", id_)).lines
        await engine.leases.suspend(lease.fence, ["go"], timeout="1h")
        [_, line] = (await shell.run("list")).lines
        assert "suspended" in line
        assert failure not in line
        await engine.operator.cancel(lease.execution_id, "too late")
    shown = "\n".join((await shell.run("show", id_, "--steps")).lines)
    assert "pay: open" in shown
    assert "next try" not in shown
    assert 'next_try_at":null' in (await shell.run("show", id_, "--steps", "--json")).lines[0].replace(" ", "")


async def test_explain_prints_a_sentence_or_facts_as_json(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        id_ = str((await engine.executions.submit("mail")).id)
    output = await shell.run("explain", id_)
    assert output.code == 0 and output.lines[0].startswith("Waiting for a worker since ")
    [line] = (await shell.run("explain", id_, "--json")).lines
    assert json.loads(line)["facts"]["live_workers"] == 0


async def test_execution_is_shown_and_listed_by_its_key(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        first = str((await engine.executions.submit("mail", key="refund-17")).id)
        await engine.executions.submit("mail", key="refund-18")
    shown = (await shell.run("show", "--key", "refund-17")).lines
    assert [line.split()[-1] for line in shown if line.startswith(("id ", "key "))] == [first, "refund-17"]
    [listed] = (await shell.run("list", "--key", "refund-17", "--json")).lines
    assert json.loads(listed)["id"] == first
    assert (await shell.run("list", "--key", "refund-19", "--json")).lines == []
