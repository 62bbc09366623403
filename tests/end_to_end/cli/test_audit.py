"""Every operator command records its principal."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

from flowfabric.engine import Engine, Graph, NewWaitpoint, Single
from tests.end_to_end.cli.shell import Shell
from tests.end_to_end.cli.test_command_table import all_commands
from tests.scenarios import leased
from tests.stores import TestStore, opened

Prepare = Callable[[Engine], Awaitable[list[str]]]
SECRET_FILE = "SECRET"


async def prepare_waiting(engine: Engine) -> list[str]:
    return [str((await engine.executions.submit("mail")).id)]


async def prepare_held(engine: Engine) -> list[str]:
    [id_] = await prepare_waiting(engine)
    await engine.operator.hold(id_, principal="bob")
    return [id_]


async def prepare_active(engine: Engine) -> list[str]:
    return [str((await leased(engine)).execution_id)]


async def prepare_completed(engine: Engine) -> list[str]:
    lease = await leased(engine)
    await engine.leases.complete(lease.fence)
    return [str(lease.execution_id)]


async def prepare_suspended(engine: Engine) -> list[str]:
    lease = await leased(engine)
    await engine.leases.suspend(lease.fence, [NewWaitpoint("k")], Single("k"))
    return [str(lease.execution_id)]


async def prepare_approval(engine: Engine) -> list[str]:
    lease = await leased(engine)
    suspension = await engine.leases.suspend(lease.fence, [NewWaitpoint("a", approver="ops")], Single("a"))
    token = suspension.waitpoints[0].token  # type: ignore[union-attr]
    assert token is not None
    return [token.reveal()]


async def prepare_signal(engine: Engine) -> list[str]:
    return [str((await leased(engine, signals=["stop"])).execution_id), "stop"]


async def prepare_flow(engine: Engine) -> list[str]:
    graph = Graph("nightly")
    graph.add("a", "job")
    return [str((await engine.flows.submit(graph)).flow_id), "--flow"]


async def prepare_worker(engine: Engine) -> list[str]:
    await engine.workers.register("w1", ["default"])
    return ["w1"]


def fixed_arguments(*words: str) -> Prepare:
    async def prepare(engine: Engine) -> list[str]:
        return list(words)

    return prepare


async def prepare_unhold_all(engine: Engine) -> list[str]:
    await prepare_held(engine)
    return ["--all"]


async def prepare_priority(engine: Engine) -> list[str]:
    return [*await prepare_waiting(engine), "7"]


OPERATOR_CALLS: list[tuple[str, Prepare]] = [
    ("signal", prepare_signal),
    ("approve", prepare_approval),
    ("reject", prepare_approval),
    ("cancel", prepare_active),
    ("cancel", prepare_flow),
    ("revoke", prepare_active),
    ("replay", prepare_completed),
    ("resume", prepare_suspended),
    ("priority", prepare_priority),
    ("hold", prepare_waiting),
    ("unhold", prepare_held),
    ("unhold", prepare_unhold_all),
    ("lanes pause", fixed_arguments("post")),
    ("lanes drain", fixed_arguments("post")),
    ("lanes resume", fixed_arguments("post")),
    ("keys seed", fixed_arguments("first", "--secret-file", SECRET_FILE)),
    ("keys rotate", fixed_arguments("next")),
    ("workers remove", prepare_worker),
]


async def test_every_operator_command_records_its_principal(store: TestStore, shell: Shell, tmp_path: Path) -> None:
    assert {path for path, _ in OPERATOR_CALLS} == {" ".join(path) for path, spec in all_commands() if spec.is_audited}
    confirmed_commands = {" ".join(path) for path, spec in all_commands() if spec.needs_confirmation}
    (tmp_path / SECRET_FILE).write_text("ab" * 32)
    # Run `keys seed` first, because a command that creates a token would otherwise create the first key.
    for number, (path, prepare) in enumerate(
        sorted(OPERATOR_CALLS, key=lambda call: not call[0].startswith("keys seed"))
    ):
        async with opened(store) as engine:
            words = [str(tmp_path / SECRET_FILE) if word == SECRET_FILE else word for word in await prepare(engine)]
        principal = f"ada-{number}"
        output = await shell.run(
            *path.split(), *words, *(["--yes"] if path in confirmed_commands else []), "--principal", principal
        )
        assert output.code == 0, (path, output)
        events = [json.loads(line) for line in (await shell.run("events", "--json")).lines]
        details = [event.get("details") or {} for event in events]
        principals = {event.get("principal") for event in events} | {detail.get("sender") for detail in details}
        assert {principal, f"operator:{principal}"} & (principals | {detail.get("source") for detail in details}), (
            path,
            words,
        )


async def test_history_shows_the_source_and_sender_of_signals(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        [token] = await prepare_approval(engine)
        [id_, name] = await prepare_signal(engine)
        [suspended_execution] = await engine.waitpoints.list_suspended()
    await shell.run("approve", token, "--principal", "ada")
    lines = (await shell.run("history", str(suspended_execution.execution_id))).lines
    assert [line for line in lines if "approve from approver:ops, sent by operator:ada" in line] != []
    await shell.run("signal", id_, name, "--principal", "ada")
    lines = (await shell.run("history", id_)).lines
    assert [line for line in lines if line.endswith("stop from operator:ada")] != []
