"""`events` and `history` print lines for people and JSON documents for programs."""

from __future__ import annotations

import json

from flowfabric.engine import Engine
from tests.end_to_end.cli.shell import Shell
from tests.scenarios import leased
from tests.stores import TestStore, opened


async def complete_execution(engine: Engine) -> str:
    lease = await leased(engine, tags={"team.owner": "ada"})
    await engine.leases.complete(lease.fence, b"out")
    return str(lease.execution_id)


async def test_events_are_printed_as_lines_or_json_documents(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        id_ = await complete_execution(engine)
        await engine.lanes.pause("default", "repairs\x1b[2J", principal="ada")
    output = await shell.run("events")
    assert (output.code, len(output.lines)) == (0, 3)
    assert "completion.completed" in output.lines[1] and id_ in output.lines[1]
    assert "by ada" in output.lines[2] and r"(repairs\x1b[2J)" in output.lines[2]
    output = await shell.run("events", "--json", "--family", "completion", "--tag", "team.owner=ada")
    [document] = map(json.loads, output.lines)
    assert (document["execution_id"], document["name"], document["tags"]) == (id_, "completed", {"team.owner": "ada"})
    output = await shell.run("events", "--cursor", document["cursor"])
    assert (output.code, len(output.lines)) == (0, 1)


async def test_named_reader_continues_where_it_stopped(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        await complete_execution(engine)
        for expected in (2, 0):
            output = await shell.run("events", "--name", "audit", "--from", "beginning")
            assert (output.code, len(output.lines)) == (0, expected)


async def test_history_lists_all_events_and_the_current_state(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        id_ = await complete_execution(engine)
    output = await shell.run("history", id_)
    assert output.code == 0
    assert ["lease.acquired" in output.lines[0], "completion.completed" in output.lines[1]] == [True, True]
    assert output.lines[2].startswith("Completed at") and id_ not in output.lines[0] + output.lines[1]
    output = await shell.run("history", id_, "--json")
    assert [json.loads(line)["version"] for line in output.lines] == [1, 2]
