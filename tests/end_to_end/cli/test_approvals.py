"""Operators decide approvals without a token, for an approver or as themselves, and are on record."""

from __future__ import annotations

import getpass
import json
from typing import Any
from uuid import uuid4

from flowfabric.engine import AnyOf, ApprovalPrompt, Count, Engine, NewWaitpoint, Single
from tests.end_to_end.cli.shell import Shell
from tests.scenarios import Wait, suspended
from tests.stores import TestStore, opened

PROMPT = ApprovalPrompt("Refund 120 euros?", "It arrived\nbroken.", {"order": "o-17", "items": ["screen"]})


async def asked(engine: Engine, *approvers: str, name: str = "refund") -> Wait:
    bindings = [NewWaitpoint(f"approval:{name}[{who}]", approver=who, prompt=PROMPT) for who in approvers]
    bindings = bindings or [NewWaitpoint(f"approval:{name}", prompt=PROMPT)]
    keys = [binding.key for binding in bindings]
    counts = [Count(len(keys), "sources", keys, "approve"), Count(1, "sources", keys, "reject")]
    return await suspended(engine, bindings, AnyOf(counts))


async def decisions_of(engine: Engine, wait: Wait) -> list[Any]:
    return [
        (event.principal, event.details["source"], event.details["name"])
        for event in await engine.executions.history(wait.id)
        if event.name == "delivered" and event.details is not None
    ]


async def test_operator_decides_for_an_approver_and_is_on_record(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        wait = await asked(engine, "ops", "finance")
        output = await shell.run("approve", str(wait.id), "--as", "ops", "--principal", "ann", "--reason", "fine")
        assert (output.code, output.lines) == (0, ["Approved as ops."])
        output = await shell.run("reject", str(wait.id), "--as", "finance", "--reason", "no", "--json")
        result = json.loads(output.lines[0])
        assert (result["decision"], result["by"], result["comment"], result["repeated"]) == (
            "reject",
            "finance",
            "no",
            False,
        )
        assert (result["approval"], result["execution_id"]) == ("refund", str(wait.id))
        assert await decisions_of(engine, wait) == [
            ("ann", "approver:ops", "approve"),
            (getpass.getuser(), "approver:finance", "reject"),
        ]


async def test_repeated_decision_returns_the_first_also_after_the_wait(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        wait = await asked(engine, "ops")
        assert (await shell.run("approve", str(wait.id), "--as", "ops")).lines == ["Approved as ops."]
        for command in ("reject", "approve"):
            output = await shell.run(command, str(wait.id), "--as", "ops")
            assert (output.code, output.lines) == (0, ["Already approved as ops; the first decision counts."])


async def test_anyone_decides_an_approval_without_approvers(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        wait = await asked(engine)
        refused = await shell.run("approve", str(wait.id), "--as", "bob")
        assert refused.code == 4 and "not_the_approver" in refused.error and 'omit "bob"' in refused.error
        assert (await shell.run("approve", str(wait.id), "--principal", "ann")).lines == ["Approved."]
        assert await decisions_of(engine, wait) == [("ann", "operator:ann", "approve")]


async def test_decision_for_an_approver_must_name_the_approver(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        wait = await asked(engine, "ops", "finance")
        for options in ([], ["--as", "legal"]):
            refused = await shell.run("approve", str(wait.id), *options)
            assert refused.code == 3 and "approval_not_open" in refused.error
            assert 'add --as NAME; open: "refund" as ops, "refund" as finance' in refused.error
        assert (await shell.run("approve", str(wait.id), "--principal", "ops")).lines == ["Approved."]


async def test_several_open_approvals_are_listed_and_chosen_by_waitpoint(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        keys = ["approval:a[ops]", "approval:b[ops]"]
        bindings = [NewWaitpoint(key, approver="ops", prompt=PROMPT) for key in keys]
        wait = await suspended(engine, bindings, AnyOf([Single(key) for key in keys]))
        refused = await shell.run("approve", str(wait.id), "--as", "ops")
        assert (refused.code, refused.lines) == (2, [])
        header, *rows, error = refused.error.splitlines()
        assert header.split() == ["WAITPOINT", "APPROVAL", "FOR", "TITLE"]
        assert [row.split()[:3] for row in rows] == [[str(wait.waitpoint(key)), key[9], "ops"] for key in keys]
        assert "several_approvals" in error and "2 approvals are open" in error
        chosen = await shell.run("reject", str(wait.waitpoint(keys[1])), "--as", "ops")
        assert chosen.lines == ["Rejected as ops."]
        [signal] = await engine.signals.list(wait.id)
        assert signal.waitpoint == keys[1]


async def test_closed_approval_is_refused_with_the_reason(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        wait = await asked(engine, "ops", "finance")
        await shell.run("reject", str(wait.id), "--as", "finance")
        output = await shell.run("approve", str(wait.id), "--as", "ops")
        assert output.code == 4
        assert 'approval "refund" accepts no further decisions: finance rejected it' in output.error


async def test_execution_without_approvals_and_unknown_id_are_refused(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        wait = await suspended(engine, ["callback:export"], Single("callback:export"))
        for target, code, words in [
            (wait.id, 3, "it has no open approval"),
            (uuid4(), 3, "execution_not_found"),
            (wait.waitpoint("callback:export"), 2, "not_an_approval"),
        ]:
            output = await shell.run("approve", str(target), "--as", "ops")
            assert output.code == code and words in output.error


async def test_token_decides_only_for_its_own_approver(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        wait = await asked(engine, "ops", "finance")
        token = wait.token("approval:refund[ops]").reveal()
        refused = await shell.run("approve", token, "--as", "finance")
        assert refused.code == 4 and "not_the_approver" in refused.error and token not in refused.error
        assert (await shell.run("approve", token, "--as", "ops")).lines == ["Approved as ops."]


async def test_commands_show_what_the_approver_sees(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        wait = await asked(engine, "ops", "finance")
        for words in (["show", str(wait.id)], ["waitpoints", str(wait.id)]):
            lines = (await shell.run(*words)).lines
            start = lines.index('Approval "refund": Refund 120 euros?')
            assert lines[start + 1 :] == ["It arrived", "broken.", "order  o-17", 'items  ["screen"]']
        views = [json.loads(line) for line in (await shell.run("waitpoints", str(wait.id), "--json")).lines]
        assert [view["prompt"]["title"] for view in views] == ["Refund 120 euros?"] * 2
        assert views[0]["prompt"]["show"] == {"order": "o-17", "items": ["screen"]}
