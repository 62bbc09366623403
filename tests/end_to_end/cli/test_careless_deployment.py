"""A deployment whose code does not match the journals of running work is visible in the log and in `doctor`."""

from __future__ import annotations

import json
import logging

import pytest

from flowfabric import App, Handle, sleep, step
from flowfabric.engine import Engine, State
from tests.end_to_end.cli.shell import Shell
from tests.end_to_end.worker.scripted_runs import until, wait_for_state
from tests.stores import TestStore, opened


def make_app(engine: Engine, *, is_new: bool) -> App:
    app = App("never-opened.db", code_version="new" if is_new else "old")
    app.engines.adopt(engine)

    @app.task
    async def refund(order: str) -> str:
        await step(str.upper, order)
        if is_new:
            await step.options(name="audit")(str.lower, order)
        await sleep("10ms" if is_new else "1s")
        return order

    return app


async def deploy_carelessly(engine: Engine, number: int = 2) -> list[Handle[str]]:
    """Start executions with old code, and continue them with new code until they are held."""
    old, new = make_app(engine, is_new=False), make_app(engine, is_new=True)
    async with old.worker():
        handles = [await old.tasks["refund"].submit(f"o-{index}") for index in range(number)]
        for handle in handles:
            await wait_for_state(engine, handle.id, State.DELAYED)
    async with new.worker():
        for handle in handles:
            await wait_for_state(engine, handle.id, State.BLOCKED)
    return handles


async def test_divergence_is_one_warning_with_both_columns(store: TestStore, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(store) as engine:
        handles = await deploy_carelessly(engine)
    records = [record for record in caplog.records if "no longer matches" in record.getMessage()]
    assert {record.levelno for record in records} == {logging.WARNING}
    messages = {record.getMessage() for record in records}
    assert len(records) == len(messages) == len(handles)
    for handle in handles:
        [message] = [message for message in messages if str(handle.id) in message]
        assert message.splitlines()[:4] == [
            f"refund {handle.id}: the code no longer matches the journal",
            "    recorded                    now",
            "  0 str.upper                   str.upper",
            "> 1 sleep                       audit",
        ]
        assert message.endswith("The execution is held until it is unheld")


async def test_doctor_names_kind_number_first_divergence_and_repair_of_held_work(
    store: TestStore, shell: Shell
) -> None:
    async with opened(store) as engine:
        first, _ = await deploy_carelessly(engine)
        output = await shell.run("doctor", "--json")
    assert output.code == 1
    [finding] = [finding for finding in map(json.loads, output.lines) if finding["subject"] == "held"]
    assert finding["verdict"] == "wrong"
    assert finding["text"] == (
        f"2 executions of refund are held (diverged). First: refund {first.id}: the code no longer matches the "
        'journal; call 1 was "sleep" and is now "audit"'
    )
    assert finding["advice"] == (
        'deploy the former code, or repair the new code with changed("…"), a step name or version=2, then '
        f"flowfabric unhold --all --kind refund --held-for diverged; flowfabric show {first.id} prints the report"
    )


async def test_worker_that_starts_warns_about_held_work_and_work_that_no_worker_can_claim(
    store: TestStore, caplog: pytest.LogCaptureFixture
) -> None:
    async def has_warned() -> bool:
        return "serves lane" in caplog.text

    async with opened(store) as engine:
        first, _ = await deploy_carelessly(engine)
        await engine.executions.submit("unknown")
        await engine.executions.submit("refund", lane="mail")
        await engine.executions.submit("refund", requires=["gpu"])
        caplog.clear()
        async with make_app(engine, is_new=True).worker():
            await until(has_warned)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    held, *waiting = warnings
    assert held == (
        f"2 executions of refund held (diverged), first {first.id}: refund {first.id}: the code no longer matches the "
        'journal; call 1 was "sleep" and is now "audit"; run flowfabric doctor'
    )
    assert sorted(waiting) == [
        '1 execution of refund waiting on lane default: no live worker on lane "default" offers gpu',
        '1 execution of refund waiting on lane mail: no live worker serves lane "mail"',
        '1 execution of unknown waiting on lane default: no live worker on lane "default" runs "unknown"',
    ]


async def test_doctor_warns_about_operator_holds_and_exits_0_for_them(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        execution = await engine.executions.submit("refund")
        await engine.operator.hold(execution.id, "incident 7")
        output = await shell.run("doctor", "--json")
    [finding] = [finding for finding in map(json.loads, output.lines) if finding["subject"] == "held"]
    assert finding["verdict"] == "warning"
    assert finding["text"] == "1 execution of refund is held by an operator (incident 7)"
    assert finding["advice"] == "to continue: flowfabric unhold --all --kind refund --held-for 'incident 7'"
