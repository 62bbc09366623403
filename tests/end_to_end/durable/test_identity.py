"""Paths, keys and records identify the same call in every run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flowfabric import App, ExecutionFailed, InvalidRequest, current, gather, sleep, step
from flowfabric.testing import Kit


async def test_repeated_call_name_gets_a_number(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> None:
        for _ in range(3):
            await step(str)
        await step(int)
        await step(str)

    handle = await kit.start(task)

    assert await kit.steps(handle) == ["str", "str#2", "str#3", "int", "str#4"]


async def test_path_is_assigned_when_a_call_is_created_not_when_awaited(app: App, kit: Kit) -> None:
    done: list[str] = []

    @app.task
    async def task() -> None:
        first, second = step(done.append, "first"), step(done.append, "second")
        await second
        await first

    handle = await kit.start(task)

    assert done == ["second", "first"]
    assert await kit.steps(handle) == ["list.append#2", "list.append"]


async def test_key_is_part_of_the_path(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> None:
        for name in ("a", "b"):
            await step.options(key=name)(str, name)

    handle = await kit.start(task)

    assert await kit.steps(handle) == ["str[a]", "str[b]"]


async def test_key_used_twice_in_a_scope_is_rejected(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> None:
        await step.options(key="a")(str)
        await step.options(key="a")(str)

    with pytest.raises(ExecutionFailed, match=r"str\[a\] was called before in this function"):
        await kit.run(task)


async def test_key_may_be_reused_in_another_scope_or_under_another_name(app: App, kit: Kit) -> None:
    async def branch() -> None:
        await step.options(key="a")(str)

    @app.task
    async def task() -> None:
        await step.options(key="a")(str)
        await step.options(key="a")(int)
        await gather(branch(), branch())

    handle = await kit.start(task)

    assert sorted(await kit.steps(handle)) == ["gather", "gather[0]/str[a]", "gather[1]/str[a]", "int[a]", "str[a]"]


async def test_keyed_calls_may_be_reordered(app: App, kit: Kit) -> None:
    names = ["a", "b"]
    done: list[str] = []

    @app.task
    async def task() -> None:
        for name in names:
            await step.options(key=name)(done.append, name)
        await step(str)
        await sleep("1h")

    handle = await kit.start(task)
    names[:] = ["c", "b", "a"]
    await kit.finish(handle)

    assert done == ["a", "b", "c"]


async def test_every_try_of_a_step_has_the_same_idempotency_key(app: App, kit: Kit) -> None:
    keys: list[str] = []

    def flaky() -> None:
        keys.append(current().idempotency_key)
        if len(keys) < 3:
            raise ConnectionError("not yet")

    async def branch() -> None:
        await step(flaky)

    @app.task
    async def task() -> None:
        await step(str)
        await gather(branch())

    kit.crash_before("gather[0]/flaky")
    handle = await kit.start(task)
    await kit.finish(handle)

    assert len(keys) >= 3
    assert set(keys) == {f"{handle.id}/gather[0]/flaky"}


async def test_record_contains_scope_index_and_kind_of_a_call(app: App, kit: Kit) -> None:
    async def branch() -> None:
        await step(int, "7")

    @app.task
    async def task() -> None:
        await step(str)
        await step.options(key="a")(str, "x")
        await gather(branch())
        await sleep("1h")

    handle = await kit.start(task)

    records = {
        record.name: (record.status, *_read_position(record.payload))
        for record in await kit.engine.executions.steps(handle.id)
    }
    assert records == {
        "str": ("ok", "", 0, "step"),
        "str[a]": ("ok", "", -1, "step"),
        "gather[0]/int": ("ok", "gather[0]/", 0, "step"),
        "gather": ("ok", "", 1, "gather"),
        "sleep": ("open", "", 2, "sleep"),
    }


def _read_position(payload: bytes) -> tuple[str, int, str]:
    head: dict[str, Any] = json.loads(payload)[0]
    return head.get("scope", ""), head["index"], head["kind"]


async def test_record_of_a_retried_step_contains_its_tries_and_due_time(app: App, kit: Kit) -> None:
    def flaky() -> None:
        raise ConnectionError("not yet")

    @app.task
    async def task() -> None:
        await step.options(retries=1)(flaky)

    handle = await kit.start(task)

    [record] = await kit.engine.executions.steps(handle.id)
    facts = json.loads(record.payload)[0]["facts"]
    assert (record.status, facts["tries"]) == ("open", 1)
    assert facts["due"] > kit.now().isoformat()
    with pytest.raises(ExecutionFailed, match="flaky failed: ConnectionError: not yet"):
        await kit.finish(handle)
    [record] = await kit.engine.executions.steps(handle.id)
    assert (record.status, json.loads(record.payload)[0]["facts"]["tries"]) == ("failed", 2)


async def test_call_cannot_be_awaited_twice(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> str:
        call = step(str, "x")
        await call
        try:
            await call
        except InvalidRequest as error:
            return error.code
        return "twice"

    assert await kit.run(task) == "awaited_twice"
