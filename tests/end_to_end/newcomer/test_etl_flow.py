"""An ETL flow of 202 members whose code is upgraded while it runs, and whose failed part is repaired by the upgrade."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import UUID

import pytest

from flowfabric.cli.main import main
from flowfabric.engine import Engine, FlowState, State
from tests.end_to_end.cli.shell import store_options
from tests.end_to_end.newcomer.processes import ProgramProcesses, processes_of, store_options_of, until
from tests.stores import TestStore, opened

PARTS = range(200)
LATE = range(0, 200, 10)
# The edits of the new release. It knows the missing number, and checks each part before it loads it.
UPGRADE = {
    "from flowfabric import App, Signal, step": "from flowfabric import App, Signal, changed, step",
    " if number != 13}": "}",
    "    if part % 10 == 0:\n": '    if changed("check"):\n        await step(check, text)\n    if part % 10 == 0:\n',
}


def upgraded(source: str) -> str:
    for old, new in UPGRADE.items():
        assert old in source
        source = source.replace(old, new)
    return source


async def stop(worker: Process) -> None:
    worker.terminate()
    assert await worker.wait() == 0


async def counts(engine: Engine, flow_id: UUID) -> dict[State, int]:
    return dict((await engine.flows.describe(flow_id)).counts)


def holds(check: Callable[[], Awaitable[bool]]) -> Awaitable[None]:
    async def condition() -> bool:
        return await check()

    return until(condition)


async def upgrade(etl: ProgramProcesses, folder: Path, old: list[Process]) -> None:
    """Replace the code, and then each worker by one that runs the new code."""
    program = folder / "etl_flow.py"
    program.write_text(upgraded(program.read_text()))
    for worker in old:
        await etl.start_worker()
        await stop(worker)


async def command(store: TestStore, *words: str) -> int:
    """Run a command on the store, and return its exit code."""
    return await asyncio.to_thread(main, [*store_options(store), *words])


async def test_etl_flow_survives_an_upgrade_and_is_repaired(
    store: TestStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    variables = {"FLOWFABRIC_STORE": store.url, "ETL_OPTIONS": json.dumps(store_options_of(store))}
    async with opened(store) as engine, processes_of("etl_flow", tmp_path, **variables) as etl:
        workers = [await etl.start_worker(), await etl.start_worker()]
        program = await etl.start_program()
        assert program.stdout is not None
        flow_id, report, part_13 = (UUID(word) for word in (await program.stdout.readline()).decode().split())

        # The upgrade begins while parts are loaded, and after the late parts have started with the old code.
        async def is_under_way() -> bool:
            now = await counts(engine, flow_id)
            return now.get(State.SUSPENDED) == len(LATE) and now.get(State.FAILED) == 1

        await holds(is_under_way)
        await upgrade(etl, tmp_path, workers)
        members = (await engine.flows.members(flow_id, limit=1000)).items
        for member in members:
            if member.state is State.SUSPENDED:
                await engine.signals.send(member.id, "delivered", b"true")

        # The failed part made the report impossible, and the alarm ran although the report was only skipped.
        assert await engine.flows.wait(flow_id, "60s") is FlowState.FAILED
        assert await counts(engine, flow_id) == {State.COMPLETED: 200, State.FAILED: 1, State.SKIPPED: 1}
        explanation = await engine.operator.explain(report)
        assert 'upstream "extract#14" failed. Replay the failed member to bring this one back.' in explanation.sentence
        failed = await engine.executions.describe(part_13)
        assert failed.last_failure is not None and "KeyError" in failed.last_failure.message

        assert await command(store, "replay", "--flow", str(flow_id), "--failed", "--yes") == 0
        assert await engine.flows.wait(flow_id, "60s") is FlowState.COMPLETED
        outcome = await engine.executions.result(report)
        assert outcome is not None and outcome.result is not None
        assert json.loads(outcome.result) == sum(PARTS)

        # Each effect happened once, except for the part that was replayed. Parts of the old code are not checked.
        effects = Counter(etl.effects())
        assert {number: effects[f"downloaded {number}"] for number in PARTS} == {**dict.fromkeys(PARTS, 1), 13: 2}
        assert {number: effects[f"loaded {number}"] for number in PARTS} == {**dict.fromkeys(PARTS, 1), 13: 2}
        assert effects["alarm for the report"] == effects["checked 13"] == 1
        assert not any(effects[f"checked {number}"] for number in LATE)
        assert (await engine.held_work()) == []
        capsys.readouterr()
        await command(store, "doctor", "--json")
        findings = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        # The test server of PostgreSQL does not flush to disk.
        assert {item["subject"] for item in findings if item["verdict"] != "ok"} <= {"durability"}
