"""Operator commands record the principal and the reason, and are rejected when the state forbids them."""

from __future__ import annotations

import getpass
import json
from typing import Any
from uuid import uuid4

from flowfabric.engine import ByName, Engine, Graph, NewWaitpoint, Single
from tests.end_to_end.cli.shell import Shell
from tests.flows import built
from tests.scenarios import leased
from tests.stores import TestStore, opened


async def last_event(engine: Engine, id_: object) -> Any:
    return (await engine.executions.history(str(id_)))[-1]


async def test_cancel_records_the_principal_and_the_reason(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        id_ = str((await leased(engine)).execution_id)
        output = await shell.run("cancel", id_, "--yes", "--principal", "ada", "--reason", "wrong order")
        assert (output.code, output.lines) == (0, ["Cancelled."])
        event = await last_event(engine, id_)
        assert (event.name, event.principal, event.reason) == ("cancelled", "ada", "wrong order")
        assert (await shell.run("cancel", id_, "--yes")).code == 0
        other = await leased(engine)
        await engine.leases.complete(other.fence)
        output = await shell.run("cancel", str(other.execution_id), "--yes")
        assert output.code == 4 and len(output.error.splitlines()) == 1


async def test_system_user_is_the_default_principal(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        id_ = str((await engine.executions.submit("mail")).id)
        assert (await shell.run("hold", id_)).lines == ["Held."]
        assert (await last_event(engine, id_)).principal == getpass.getuser()


async def test_cancel_with_grace_returns_the_deadline(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        id_ = str((await leased(engine)).execution_id)
    output = await shell.run("cancel", id_, "--yes", "--grace", "1h", "--json")
    assert json.loads(output.lines[0])["cancelled_at"] is not None


async def test_cancelling_a_flow_cancels_its_members(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        graph = Graph("nightly")
        graph.add("b", "job", after=[graph.add("a", "job")])
        id_ = str((await engine.flows.submit(graph)).flow_id)
        output = await shell.run("cancel", id_, "--flow", "--yes")
        assert output.lines == ["Cancelled, with 2 members."]
        output = await shell.run("cancel", id_, "--flow", "--yes", "--json")
        assert json.loads(output.lines[0])["outcome"] == "FlowAlreadyTerminal"
        assert (await engine.flows.describe(id_)).state == "cancelled"


async def test_cancelling_a_finished_flow_says_that_there_is_nothing_to_do(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        flow = await built(engine, {"a": []})
        await flow.complete("a")
        output = await shell.run("cancel", str(flow.id), "--flow", "--yes")
        assert (output.code, output.lines) == (0, ["Nothing to do: the flow has completed."])


async def test_replaying_a_member_brings_back_the_skipped_members(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        flow = await built(engine, {"a": [], "b": ["a"], "c": ["b"]})
        await flow.fail("a")
        output = await shell.run("replay", str(flow["a"]), "--yes", "--no-downstream")
        assert output.lines == ["Replayed as generation 1; it is waiting."]
        await flow.fail("a")
        output = await shell.run("replay", str(flow["a"]), "--yes")
        assert output.lines == ["Replayed as generation 2; it is waiting. 2 skipped members came back."]


async def test_failed_members_of_a_flow_are_replayed_together(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        flow = await built(engine, {"a": [], "b": [], "c": ["a", "b"]})
        await flow.fail("a", "b")
        command = ("replay", "--flow", str(flow.id), "--failed", "--yes")
        output = await shell.run(*command, "--principal", "ada", "--reason", "fixed")
        assert output.lines == ["Replayed 2 failed members. 1 skipped member came back."]
        event = await last_event(engine, flow["c"])
        assert (event.name, event.principal, event.reason) == ("replayed", "ada", "fixed")
        output = await shell.run(*command, "--json")
        assert json.loads(output.lines[0])["replayed"] == 0
        for wrong in (["--flow"], ["--failed"], ["--flow", "--failed", "--no-downstream"]):
            assert (await shell.run("replay", str(flow.id), *wrong, "--yes")).code == 2


async def test_revoke_ends_the_lease_of_the_named_instance_only(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        id_ = str((await leased(engine)).execution_id)
        output = await shell.run("revoke", id_, "--yes", "--instance", "another")
        assert output.lines == ["Nothing to do: different worker instance."]
        assert (await shell.run("revoke", id_, "--yes")).lines == ["Revoked. The execution is now at epoch 2."]
        assert json.loads((await shell.run("revoke", id_, "--yes", "--json")).lines[0])["revoked"] is False


async def test_only_an_ended_execution_is_replayed(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        lease = await leased(engine)
        id_ = str(lease.execution_id)
        assert (await shell.run("replay", id_, "--yes")).code == 4
        await engine.leases.complete(lease.fence)
        assert (await shell.run("replay", id_, "--yes")).lines == ["Replayed as generation 1; it is waiting."]
        assert (await last_event(engine, id_)).name == "replayed"


async def test_resume_ends_a_wait(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        lease = await leased(engine)
        await engine.leases.suspend(lease.fence, [NewWaitpoint("k")], Single("k"))
        output = await shell.run("resume", str(lease.execution_id), "--yes", "--reason", "by phone")
        assert output.lines == ["Resumed; it is resumable."]
        assert (await shell.run("resume", str(lease.execution_id), "--yes")).code == 4


async def test_waiting_execution_is_prioritized_held_and_unheld(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        id_ = str((await engine.executions.submit("mail")).id)
        assert (await shell.run("priority", id_, "99999")).lines == ["The priority is 9000; it was 0."]
        assert (await shell.run("hold", id_, "--reason", "audit")).lines == ["Held."]
        assert (await shell.run("priority", id_, "1")).code == 4
        assert (await shell.run("unhold", id_)).lines == ["No longer held; it is waiting."]
        assert (await shell.run("unhold", id_)).lines == ["Nothing to do: it is not held."]
        for _ in range(2):
            held = await engine.executions.submit("mail")
            await engine.operator.hold(held.id, "audit")
        output = await shell.run("unhold", "--all", "--held-for", "audit", "--yes")
        assert output.lines == ["2 executions no longer held."]


async def test_signal_is_delivered_by_execution_id_or_token(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        lease = await leased(engine, signals=["stop"])
        output = await shell.run("signal", str(lease.execution_id), "stop", '{"now": true}', "--key", "k", "--json")
        assert json.loads(output.lines[0])["repeated"] is False
        output = await shell.run("signal", str(lease.execution_id), "stop", '{"now": true}', "--key", "k")
        assert output.lines[0].startswith("Already delivered")
        signal_id = str(uuid4())
        for sentence in ("Delivered", "Already delivered"):
            output = await shell.run("signal", str(lease.execution_id), "stop", "1", "--signal-id", signal_id)
            assert output.lines[0].startswith(f"{sentence} as signal {signal_id}")
        assert (await shell.run("signal", str(lease.execution_id), "go")).code == 3
        suspension = await engine.leases.suspend(lease.fence, [NewWaitpoint("k")], Single("k", ByName("paid")))
        token = suspension.waitpoints[0].token  # type: ignore[union-attr]
        assert token is not None
        output = await shell.run("signal", token.reveal(), "paid", "7", "--principal", "ada")
        assert output.lines[0].endswith(": resume condition satisfied.")
        [signal] = await engine.signals.list(lease.execution_id)
        assert (signal.payload, signal.source) == (b"7", "claimed:8:operator:ada")


async def test_first_decision_by_link_counts(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        lease = await leased(engine)
        suspension = await engine.leases.suspend(lease.fence, [NewWaitpoint("a", approver="ops")], Single("a"))
        token = suspension.waitpoints[0].token  # type: ignore[union-attr]
        assert token is not None
        link = f"https://shop.example/ff/{token.reveal()}?from=mail#top"
        assert (await shell.run("approve", link, "--reason", "looks good")).lines == ["Approved as ops."]
        output = await shell.run("reject", token.reveal())
        assert output.lines == ["Already approved as ops; the first decision counts."]
        [signal] = await engine.signals.list(lease.execution_id)
        assert json.loads(signal.payload) == {"comment": "looks good"}
        forged = token.reveal()[:-1] + ("A" if token.reveal()[-1] != "A" else "B")
        output = await shell.run("approve", forged)
        assert output.code == 2 and "invalid_token" in output.error and forged not in output.error
