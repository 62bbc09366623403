"""`events` and `history`: lines for people and documents for programs, on every store."""

from __future__ import annotations

import json

from flowfabric.engine import Engine
from tests.end_to_end.cli.shell import Shell
from tests.scenarios import leased
from tests.stores import TestStore, opened


async def finished(engine: Engine) -> str:
    lease = await leased(engine, tags={"team.owner": "ada"})
    await engine.leases.complete(lease.fence, b"out")
    return str(lease.execution_id)


async def test_events_are_lines_for_people_and_documents_for_programs(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        id_ = await finished(engine)
        await engine.lanes.pause("default", "repairs\x1b[2J", principal="ada")
    said = await shell.run("events")
    assert (said.code, len(said.lines)) == (0, 3)
    assert "completion.completed" in said.lines[1] and id_ in said.lines[1]
    assert "by ada" in said.lines[2] and r"(repairs\x1b[2J)" in said.lines[2]
    said = await shell.run("events", "--json", "--family", "completion", "--tag", "team.owner=ada")
    [document] = map(json.loads, said.lines)
    assert (document["execution_id"], document["name"], document["tags"]) == (id_, "completed", {"team.owner": "ada"})
    said = await shell.run("events", "--cursor", document["cursor"])
    assert (said.code, len(said.lines)) == (0, 1)


async def test_a_name_goes_on_where_it_was(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        await finished(engine)
        for expected in (2, 0):
            said = await shell.run("events", "--name", "audit", "--from", "beginning")
            assert (said.code, len(said.lines)) == (0, expected)


async def test_history_tells_the_whole_life_and_where_it_stands(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        id_ = await finished(engine)
    said = await shell.run("history", id_)
    assert said.code == 0
    assert ["lease.acquired" in said.lines[0], "completion.completed" in said.lines[1]] == [True, True]
    assert said.lines[2].startswith("It has ended: completed") and id_ not in said.lines[0] + said.lines[1]
    said = await shell.run("history", id_, "--json")
    assert [json.loads(line)["version"] for line in said.lines] == [1, 2]
