"""An agent whose workers are killed with -9 while its model thinks, and while a person decides."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from flowfabric import App
from tests.end_to_end.newcomer.processes import kill, processes_of, store_options_of, until
from tests.stores import TestStore, opened


async def test_agent_answers_after_two_kills_and_calls_no_tool_twice(store: TestStore, tmp_path: Path) -> None:
    options = store_options_of(store)
    variables = {"FLOWFABRIC_STORE": store.url, "AGENT_OPTIONS": json.dumps(options)}
    token = tmp_path / "token.txt"
    async with opened(store) as engine, processes_of("agent_loop", tmp_path, **variables) as agent:
        first = await agent.start_worker()
        id_ = (await engine.executions.submit("agent", b'{"goal":"a trip"}')).id
        await agent.wait_for_effect("model 2")
        await kill(first)

        (tmp_path / "model-is-back.txt").touch()
        second = await agent.start_worker()

        async def is_suspended() -> bool:
            return token.exists() and (await engine.executions.describe(id_)).state == "suspended"

        await until(is_suspended)
        await kill(second)

        async with App(store.url, options=options) as app:  # type: ignore[arg-type]
            await app.approve(token.read_text(), "fine")
        await agent.start_worker()
        outcome = await engine.executions.wait(id_, 30)
        assert outcome is not None and outcome.result is not None
        assert json.loads(outcome.result) == "booked: found flights, booked LH 17, mailed ann"
        calls = Counter(agent.effects())
        assert {effect: number for effect, number in calls.items() if not effect.startswith("model")} == {
            "search flights": 1,
            "book LH 17": 1,
            "mail ann": 1,
        }
        assert calls == calls | {"model 0": 1, "model 1": 1, "model 2": 2, "model 3": 1}
