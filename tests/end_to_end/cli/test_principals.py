"""Whoever operates is recorded, whatever the verb."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

from flowfabric.engine import Engine, Fresh, Graph, Single
from tests.end_to_end.cli.shell import Shell
from tests.end_to_end.cli.test_registry import every
from tests.scenarios import leased
from tests.stores import TestStore, opened

Prepare = Callable[[Engine], Awaitable[list[str]]]
FILE = "SECRET"


async def waiting(engine: Engine) -> list[str]:
    return [str((await engine.executions.submit("mail")).id)]


async def held(engine: Engine) -> list[str]:
    [id_] = await waiting(engine)
    await engine.operator.hold(id_, principal="bob")
    return [id_]


async def running(engine: Engine) -> list[str]:
    return [str((await leased(engine)).execution_id)]


async def ended(engine: Engine) -> list[str]:
    lease = await leased(engine)
    await engine.leases.complete(lease.fence)
    return [str(lease.execution_id)]


async def suspended(engine: Engine) -> list[str]:
    lease = await leased(engine)
    await engine.leases.suspend(lease.fence, [Fresh("k")], Single("k"))
    return [str(lease.execution_id)]


async def asked(engine: Engine) -> list[str]:
    lease = await leased(engine)
    answer = await engine.leases.suspend(lease.fence, [Fresh("a", approver="ops")], Single("a"))
    token = answer.waitpoints[0].token  # type: ignore[union-attr]
    assert token is not None
    return [token.reveal()]


async def signalled(engine: Engine) -> list[str]:
    return [str((await leased(engine, signals=["stop"])).execution_id), "stop"]


async def flow(engine: Engine) -> list[str]:
    graph = Graph("nightly")
    graph.add("a", "job")
    return [str((await engine.flows.submit(graph)).flow_id), "--flow"]


async def worker(engine: Engine) -> list[str]:
    await engine.workers.register("w1", ["default"])
    return ["w1"]


def only(*words: str) -> Prepare:
    async def prepare(engine: Engine) -> list[str]:
        return list(words)

    return prepare


async def all_held(engine: Engine) -> list[str]:
    await held(engine)
    return ["--all"]


async def priority(engine: Engine) -> list[str]:
    return [*await waiting(engine), "7"]


OPERATED: list[tuple[str, Prepare]] = [
    ("signal", signalled), ("approve", asked), ("reject", asked), ("cancel", running), ("cancel", flow),
    ("revoke", running), ("replay", ended), ("resume", suspended), ("priority", priority), ("hold", waiting),
    ("unhold", held), ("unhold", all_held), ("lanes pause", only("post")), ("lanes drain", only("post")),
    ("lanes resume", only("post")), ("keys seed", only("first", "--secret-file", FILE)), ("keys rotate", only("next")),
    ("workers remove", worker),
]  # fmt: skip


async def test_every_verb_records_who_did_it(store: TestStore, shell: Shell, tmp_path: Path) -> None:
    assert {path for path, _ in OPERATED} == {" ".join(path) for path, verb in every() if verb.operates}
    asks = {" ".join(path) for path, verb in every() if verb.asks}
    (tmp_path / FILE).write_text("ab" * 32)
    # Keys go first: the first token would make one by itself.
    for number, (path, prepare) in enumerate(sorted(OPERATED, key=lambda item: not item[0].startswith("keys seed"))):
        async with opened(store) as engine:
            words = [str(tmp_path / FILE) if word == FILE else word for word in await prepare(engine)]
        who = f"ada-{number}"
        said = await shell.run(*path.split(), *words, *(["--yes"] if path in asks else []), "--principal", who)
        assert said.code == 0, (path, said)
        events = [json.loads(line) for line in (await shell.run("events", "--json")).lines]
        details = [event.get("details") or {} for event in events]
        named = {event.get("principal") for event in events} | {item.get("sender") for item in details}
        assert {who, f"operator:{who}"} & (named | {item.get("source") for item in details}), (path, words)


async def test_history_shows_from_whom_signals_came(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        [token] = await asked(engine)
        [id_, name] = await signalled(engine)
        [found] = await engine.waitpoints.list_suspended()
    await shell.run("approve", token, "--principal", "ada")
    lines = (await shell.run("history", str(found.execution_id))).lines
    assert [line for line in lines if "approve from approver:ops, sent by operator:ada" in line] != []
    await shell.run("signal", id_, name, "--principal", "ada")
    lines = (await shell.run("history", id_)).lines
    assert [line for line in lines if line.endswith("stop from operator:ada")] != []
