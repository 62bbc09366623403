"""Commands accept the start of an id if it is the start of only one id."""

from __future__ import annotations

from flowfabric.engine import Graph
from tests.end_to_end.cli.shell import Shell
from tests.end_to_end.cli.test_approvals import asked
from tests.scenarios import leased, submitted
from tests.stores import TestStore, opened

FIRST, SECOND = "aaaa1111-0000-7000-8000-000000000000", "aaaa2222-0000-7000-8000-000000000000"


async def test_start_of_an_id_names_its_execution_in_every_command(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        await submitted(engine, id=FIRST, signals=["paid"])
        await submitted(engine, id=SECOND)
        for command in ("show", "history", "explain"):
            output = await shell.run(command, "aaaa1")
            assert output.code == 0, output
        assert FIRST in (await shell.run("show", "AAAA1111-00", "--json")).lines[0]
        assert all(FIRST in line for line in (await shell.run("events", "--execution", "aaaa1", "--json")).lines)
        for command, *words in (
            ["hold"],
            ["unhold"],
            ["priority", "7"],
            ["signal", "paid"],
            ["waitpoints"],
            ["cancel", "--yes"],
            ["replay", "--yes"],
        ):
            output = await shell.run(command, "aaaa1", *words)
            assert output.code == 0, output
        assert (await engine.executions.describe(FIRST)).generation == 1
        assert (await engine.executions.describe(SECOND)).version == 0


async def test_start_of_an_id_names_a_lease_a_wait_and_an_approval(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        wait = await asked(engine, "ops")
        assert (await shell.run("approve", str(wait.id)[:14], "--as", "ops")).lines == ["Approved as ops."]
        revoked = str((await leased(engine)).execution_id)
        assert (await shell.run("revoke", revoked[:30], "--yes")).code == 0


async def test_start_of_an_id_names_its_flow(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        graph = Graph("nightly")
        graph.add("a", "job")
        await engine.flows.submit(graph, id=FIRST)
        await engine.flows.create("weekly", id=SECOND)
        assert "nightly" in "".join((await shell.run("flows", "aaaa1")).lines)
        assert all(FIRST in line for line in (await shell.run("list", "--flow", "aaaa1", "--json")).lines)
        assert (await shell.run("events", "--flow", "aaaa1")).code == 0
        assert (await shell.run("cancel", "aaaa1", "--flow", "--yes")).code == 0
        assert (await engine.flows.describe(FIRST)).state == "cancelled"
        assert (await engine.flows.describe(SECOND)).state == "open"
        output = await shell.run("flows", "aaaa")
        assert output.code == 2 and "ambiguous_id" in output.error


async def test_start_of_several_ids_is_refused_and_names_two_of_them(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        for id_ in (FIRST, SECOND):
            await submitted(engine, id=id_)
        output = await shell.run("cancel", "aaaa", "--yes")
        assert output.code == 2 and "ambiguous_id" in output.error
        assert FIRST in output.error and SECOND in output.error and len(output.error.splitlines()) == 1
        output = await shell.run("show", "bbbb")
        assert output.code == 3 and "execution_not_found" in output.error
        output = await shell.run("show", "aaa")
        assert output.code == 2 and "at least 4 characters" in output.error


async def test_list_shows_several_states_and_the_members_of_a_flow(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        graph = Graph("nightly")
        graph.add("b", "job", after=[graph.add("a", "job")])
        flow = await engine.flows.submit(graph)
        other = await submitted(engine)
        await engine.operator.cancel(other)
        output = await shell.run("list", "--state", "waiting", "--state", "cancelled", "--json")
        assert len(output.lines) == 2
        output = await shell.run("list", "--flow", str(flow.flow_id), "--json")
        assert len(output.lines) == 2 and str(other) not in "".join(output.lines)
