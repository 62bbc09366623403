"""Exceptions whose attributes raise: the execution fails with a readable error, after its retries, and is not stuck."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowfabric import App, ExecutionFailed, StepFailed, gather, race, saga, settle, step, sync
from flowfabric.testing import Kit
from tests.faults.kit.hostile_errors import HOSTILE_ERRORS, is_final_error, make_error


@pytest.mark.parametrize("name", HOSTILE_ERRORS)
async def test_body_that_raises_a_hostile_error_fails_after_its_retries(app: App, kit: Kit, name: str) -> None:
    calls = 0

    @app.task(retries=1)
    async def task() -> None:
        nonlocal calls
        calls += 1
        raise make_error(name)

    with pytest.raises(ExecutionFailed) as failed:
        await kit.run(task)
    assert calls == (1 if is_final_error(name) else 2)
    assert failed.value.error.type == name


@pytest.mark.parametrize("is_plain", [False, True], ids=["async", "plain"])
@pytest.mark.parametrize("name", HOSTILE_ERRORS)
async def test_step_that_raises_a_hostile_error_fails_after_its_retries(
    app: App, kit: Kit, name: str, is_plain: bool
) -> None:
    calls = 0

    def plain() -> None:
        nonlocal calls
        calls += 1
        raise make_error(name)

    async def coroutine() -> None:
        plain()

    @app.task(retries=1)
    async def task() -> str:
        try:
            await step(plain if is_plain else coroutine)
        except StepFailed as failed:
            return failed.error.type
        return "nothing"

    assert await kit.run(task) == name
    assert calls == (1 if is_final_error(name) else 2)


@pytest.mark.parametrize("name", HOSTILE_ERRORS)
async def test_declared_hostile_error_reaches_the_task_as_a_failure(app: App, kit: Kit, name: str) -> None:
    declared: Any = HOSTILE_ERRORS[name]

    @step.policy(raises=[declared])
    def fail() -> None:
        raise make_error(name)

    @app.task(retries=0)
    async def task() -> str:
        try:
            await step(fail)
        except Exception as error:
            return "failed" if type(error) is StepFailed or type(error) is declared else "another error"
        return "nothing"

    assert await kit.run(task) == "failed"


@pytest.mark.parametrize("name", HOSTILE_ERRORS)
async def test_groups_and_sagas_survive_a_hostile_error(app: App, kit: Kit, name: str) -> None:
    undone: list[str] = []

    async def branch() -> str:
        await asyncio.sleep(0)
        raise make_error(name)

    @app.task(retries=0)
    async def task(kind: str) -> Any:
        if kind == "settle":
            return [type(outcome).__name__ for outcome in await settle(branch(), step(str, 1))]
        if kind == "race":
            return (await race(branch(), step(str, 1))).index
        if kind == "gather":
            await gather(branch(), step(str, 1))
        async with saga() as undo:
            undo.add(undone.append, "undone")
            await branch()
        return None

    assert await kit.run(task, "settle") == ["Failed", "Completed"]
    assert await kit.run(task, "race") == 1
    for kind in ("gather", "saga"):
        with pytest.raises(ExecutionFailed) as failed:
            await kit.run(task, kind)
        assert failed.value.error.type == name
    assert undone == ["undone"]


@pytest.mark.parametrize("name", HOSTILE_ERRORS)
async def test_plain_task_that_raises_a_hostile_error_fails(app: App, kit: Kit, name: str) -> None:
    def fail() -> None:
        raise make_error(name)

    @app.task(retries=0)
    def task(kind: str) -> Any:
        if kind == "gather":
            sync.gather(fail, lambda: sync.step(str, 1))
        fail()

    for kind in ("gather", "body"):
        with pytest.raises(ExecutionFailed):
            await kit.run(task, kind)
