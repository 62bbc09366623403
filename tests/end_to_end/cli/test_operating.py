"""What operators do: recorded with who and why, refused when the state forbids it."""

from __future__ import annotations

import getpass
import json
from typing import Any

from flowfabric.engine import ByName, Engine, Fresh, Graph, Single
from tests.end_to_end.cli.shell import Shell
from tests.scenarios import leased
from tests.stores import TestStore, opened


async def last_event(engine: Engine, id_: object) -> Any:
    return (await engine.executions.history(str(id_)))[-1]


async def test_cancelling_says_who_and_why(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        id_ = str((await leased(engine)).execution_id)
        said = await shell.run("cancel", id_, "--yes", "--principal", "ada", "--reason", "wrong order")
        assert (said.code, said.lines) == (0, ["Cancelled."])
        event = await last_event(engine, id_)
        assert (event.name, event.principal, event.reason) == ("cancelled", "ada", "wrong order")
        assert (await shell.run("cancel", id_, "--yes")).code == 0
        other = await leased(engine)
        await engine.leases.complete(other.fence)
        said = await shell.run("cancel", str(other.execution_id), "--yes")
        assert said.code == 4 and len(said.error.splitlines()) == 1


async def test_the_user_of_the_system_is_the_principal_if_nobody_else_is(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        id_ = str((await engine.executions.submit("mail")).id)
        assert (await shell.run("hold", id_)).lines == ["Held."]
        assert (await last_event(engine, id_)).principal == getpass.getuser()


async def test_cancel_with_grace_tells_until_when(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        id_ = str((await leased(engine)).execution_id)
    said = await shell.run("cancel", id_, "--yes", "--grace", "1h", "--json")
    assert json.loads(said.lines[0])["cancelled_at"] is not None


async def test_a_flow_is_cancelled_with_its_members(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        graph = Graph("nightly")
        graph.add("b", "job", after=[graph.add("a", "job")])
        id_ = str((await engine.flows.submit(graph)).flow_id)
        said = await shell.run("cancel", id_, "--flow", "--yes")
        assert said.lines == ["Cancelled, with 2 members."]
        said = await shell.run("cancel", id_, "--flow", "--yes", "--json")
        assert json.loads(said.lines[0])["answer"] == "FlowAlreadyCancelled"
        assert (await engine.flows.describe(id_)).state == "cancelled"


async def test_a_lease_is_revoked(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        id_ = str((await leased(engine)).execution_id)
        said = await shell.run("revoke", id_, "--yes", "--instance", "another")
        assert said.lines == ["Nothing to do: different worker instance."]
        assert (await shell.run("revoke", id_, "--yes")).lines == ["Revoked; the execution is at epoch 2 now."]
        assert json.loads((await shell.run("revoke", id_, "--yes", "--json")).lines[0])["revoked"] is False


async def test_an_ended_execution_is_replayed(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        lease = await leased(engine)
        id_ = str(lease.execution_id)
        assert (await shell.run("replay", id_, "--yes")).code == 4
        await engine.leases.complete(lease.fence)
        assert (await shell.run("replay", id_, "--yes")).lines == ["It runs again, as generation 1: waiting."]
        assert (await last_event(engine, id_)).name == "replayed"


async def test_a_wait_is_ended_by_an_operator(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        lease = await leased(engine)
        await engine.leases.suspend(lease.fence, [Fresh("k")], Single("k"))
        said = await shell.run("resume", str(lease.execution_id), "--yes", "--reason", "by phone")
        assert said.lines == ["It goes on: resumable."]
        assert (await shell.run("resume", str(lease.execution_id), "--yes")).code == 4


async def test_waiting_work_is_moved_held_and_let_go(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        id_ = str((await engine.executions.submit("mail")).id)
        assert (await shell.run("priority", id_, "99999")).lines == ["Its priority is 9000; it was 0."]
        assert (await shell.run("hold", id_, "--reason", "audit")).lines == ["Held."]
        assert (await shell.run("priority", id_, "1")).code == 4
        assert (await shell.run("unhold", id_)).lines == ["It goes on: waiting."]
        assert (await shell.run("unhold", id_)).lines == ["Nothing to do: it is not held."]
        for _ in range(2):
            held = await engine.executions.submit("mail")
            await engine.operator.hold(held.id, "audit")
        said = await shell.run("unhold", "--all", "--held-for", "audit", "--yes")
        assert said.lines == ["2 executions went on."]


async def test_signals_go_to_an_execution_or_by_a_token(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        lease = await leased(engine, signals=["stop"])
        said = await shell.run("signal", str(lease.execution_id), "stop", '{"now": true}', "--key", "k", "--json")
        assert json.loads(said.lines[0])["repeated"] is False
        said = await shell.run("signal", str(lease.execution_id), "stop", '{"now": true}', "--key", "k")
        assert said.lines[0].startswith("It was delivered before")
        assert (await shell.run("signal", str(lease.execution_id), "go")).code == 3
        answer = await engine.leases.suspend(lease.fence, [Fresh("k")], Single("k", ByName("paid")))
        token = answer.waitpoints[0].token  # type: ignore[union-attr]
        assert token is not None
        said = await shell.run("signal", token.reveal(), "paid", "7", "--principal", "ada")
        assert said.lines[0].endswith(": resume condition satisfied.")
        [signal] = await engine.signals.observe(lease.execution_id)
        assert (signal.payload, signal.source) == (b"7", "claimed:8:operator:ada")


async def test_a_link_is_approved_once_and_the_first_decision_counts(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        lease = await leased(engine)
        answer = await engine.leases.suspend(lease.fence, [Fresh("a", approver="ops")], Single("a"))
        token = answer.waitpoints[0].token  # type: ignore[union-attr]
        assert token is not None
        link = f"https://shop.example/ff/{token.reveal()}?from=mail#top"
        assert (await shell.run("approve", link, "--reason", "looks good")).lines == ["Approved."]
        said = await shell.run("reject", token.reveal())
        assert said.lines == ["Approved before; that decision counts."]
        [signal] = await engine.signals.observe(lease.execution_id)
        assert json.loads(signal.payload) == {"comment": "looks good"}
        forged = token.reveal()[:-1] + ("A" if token.reveal()[-1] != "A" else "B")
        said = await shell.run("approve", forged)
        assert said.code == 2 and "invalid_token" in said.error and forged not in said.error
