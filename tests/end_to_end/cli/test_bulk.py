"""`cancel --all`, `replay --all` and `hold --all` act on the executions that match, after a dry run or a question."""

from __future__ import annotations

import json
from collections.abc import Sequence
from uuid import UUID

import pytest

from flowfabric.cli.commands import bulk
from flowfabric.engine import Engine, State, Summary
from tests.end_to_end.cli.shell import Shell
from tests.flows import ended, with_children
from tests.scenarios import leased, submitted
from tests.stores import TestStore, opened


async def failed(engine: Engine, kind: str) -> UUID:
    lease = await leased(engine, kind=kind)
    await engine.leases.fail(lease.fence, "it broke", failure_class="permanent")
    return lease.execution_id


async def states(engine: Engine, *ids: UUID) -> list[State]:
    return [(await engine.executions.describe(id_)).state for id_ in ids]


async def test_bulk_cancel_acts_on_the_executions_that_match(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        mails = [await submitted(engine, kind="mail", tags={"team": "ops"}) for _ in range(2)]
        active = (await leased(engine, kind="mail")).execution_id
        other = await submitted(engine, kind="sms")
        output = await shell.run("cancel", "--all", "--kind", "mail", "--tag", "team=ops", "--yes", "--reason", "old")
        assert (output.code, output.lines) == (0, ["2 executions cancelled."])
        assert await states(engine, *mails, active, other) == ["cancelled", "cancelled", "active", "waiting"]
        event = (await engine.executions.history(mails[0]))[-1]
        assert (event.name, event.reason) == ("cancelled", "old")
        output = await shell.run("cancel", "--all", "--state", "active", "--state", "waiting", "--yes", "--json")
        assert json.loads(output.lines[0]) == {"dry_run": False, "matched": 2, "cancelled": 2, "refused": []}
        output = await shell.run("cancel", "--all", "--yes")
        assert (output.code, output.lines) == (0, ["0 executions cancelled."])


async def test_bulk_replay_runs_failed_executions_again(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        broken = [await failed(engine, "mail") for _ in range(2)]
        completed = await leased(engine, kind="mail")
        await engine.leases.complete(completed.fence)
        assert (await shell.run("replay", "--all", "--since", "1h", "--yes")).lines == ["2 executions replayed."]
        assert await states(engine, *broken, completed.execution_id) == ["waiting", "waiting", "completed"]
        output = await shell.run("replay", "--all", "--state", "completed", "--yes")
        assert output.lines == ["1 execution replayed."]


async def test_bulk_replay_leaves_children_to_their_parents(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        parent = await leased(engine, kind="order")
        children = await with_children(engine, parent, "charge")
        await ended(engine, children["charge"], "failed")
        await engine.leases.fail(parent.fence, "it broke", failure_class="permanent")
        both = [parent.execution_id, children["charge"]]
        output = await shell.run("replay", "--all", "--dry-run")
        assert output.lines[-1].startswith("1 execution would be replayed. 1 child was excluded, because")
        output = await shell.run("replay", "--all", "--yes", "--json")
        assert json.loads(output.lines[0])["excluded_children"] == 1
        assert await states(engine, *both) == ["waiting", "failed"]
        output = await shell.run("replay", "--all", "--kind", "job", "--yes")
        assert output.lines == ["1 execution replayed."]
        assert await states(engine, *both) == ["waiting", "waiting"]


async def test_bulk_replay_by_kind_leaves_children_of_selected_parents(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        parent = await leased(engine, kind="job")
        children = await with_children(engine, parent, "part")
        await ended(engine, children["part"], "failed")
        await engine.leases.fail(parent.fence, "it broke", failure_class="permanent")
        output = await shell.run("replay", "--all", "--kind", "job", "--yes")
        assert output.lines == [
            "1 execution replayed. 1 child was excluded, because a replay of the parent submits children again."
        ]
        assert await states(engine, parent.execution_id, children["part"]) == ["waiting", "failed"]


async def test_bulk_hold_holds_work_that_waits(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        slow = await submitted(engine, lane="slow")
        later = await submitted(engine, lane="slow", delay="1h")
        fast = await submitted(engine, lane="fast")
        assert (await shell.run("hold", "--all", "--lane", "slow", "--yes")).lines == ["2 executions held."]
        assert await states(engine, slow, later, fast) == ["blocked", "blocked", "waiting"]


async def test_dry_run_lists_the_executions_and_changes_nothing(
    store: TestStore, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_MAX_SHOWN", 1)
    async with opened(store) as engine:
        first, second = await submitted(engine), await submitted(engine)
        output = await shell.run("cancel", "--all", "--dry-run")
        assert output.code == 0 and str(first) in output.lines[1]
        assert output.lines[-1] == "2 executions would be cancelled (1 more are not shown)."
        output = await shell.run("hold", "--all", "--dry-run", "--json")
        expected = {"dry_run": True, "matched": 2, "ids": [str(first), str(second)]}
        assert json.loads(output.lines[0]) == expected
        assert await states(engine, first, second) == ["waiting", "waiting"]


async def test_bulk_command_without_a_confirmation_changes_nothing(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        id_ = await submitted(engine)
        for command in ("cancel", "hold"):
            output = await shell.run(command, "--all")
            assert output.code == 4 and "not_confirmed" in output.error
        assert await states(engine, id_) == ["waiting"]


async def test_bulk_command_reports_what_the_engine_refused(
    store: TestStore, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(store) as engine:
        lease, other = await leased(engine), await submitted(engine)
        executions = (await engine.executions.list()).items
        await engine.leases.complete(lease.fence)

        async def find_before_it_completed(*_: object) -> Sequence[Summary]:
            return executions

        monkeypatch.setattr(bulk, "_matching", find_before_it_completed)
        output = await shell.run("cancel", "--all", "--yes", "--json")
        assert output.code == 4
        [result] = [json.loads(line) for line in output.lines]
        assert (result["matched"], result["cancelled"]) == (2, 1)
        assert [refusal["id"] for refusal in result["refused"]] == [str(lease.execution_id)]
        assert await states(engine, lease.execution_id, other) == ["completed", "cancelled"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["cancel"], "name an execution, or use --all"),
        (["replay", str(UUID(int=7)), "--all"], "name an execution, or use --all"),
        (["hold", str(UUID(int=7)), "--kind", "mail"], "filters and --dry-run need --all"),
        (["cancel", str(UUID(int=7)), "--dry-run"], "filters and --dry-run need --all"),
        (["replay", "--all", "--generation", "1"], "--generation is for one execution"),
        (["cancel", "--all", "--flow"], "cancel a flow with --flow"),
        (["cancel", "--all", "--state", "completed"], "invalid choice"),
        (["hold", "--all", "--state", "active"], "invalid choice"),
        (["replay", "--all", "--state", "active"], "invalid choice"),
    ],
)
async def test_contradictory_bulk_arguments_are_refused(words: list[str], part: str, bare_shell: Shell) -> None:
    output = await bare_shell.run(*words)
    assert output.code == 2 and part in output.error, output
