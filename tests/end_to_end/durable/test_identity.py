"""Paths, keys and records: how a call is known again in every run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flowfabric import App, ExecutionFailed, InvalidRequest, current, gather, sleep, step
from flowfabric.testing import Kit


async def test_the_second_call_of_a_name_has_a_number(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> None:
        for _ in range(3):
            await step(str)
        await step(int)
        await step(str)

    handle = await kit.start(task)

    assert await kit.steps(handle) == ["str", "str#2", "str#3", "int", "str#4"]


async def test_identity_is_given_where_a_call_is_made_not_where_it_is_awaited(app: App, kit: Kit) -> None:
    done: list[str] = []

    @app.task
    async def task() -> None:
        first, second = step(done.append, "first"), step(done.append, "second")
        await second
        await first

    handle = await kit.start(task)

    assert done == ["second", "first"]
    assert await kit.steps(handle) == ["list.append#2", "list.append"]


async def test_a_key_tells_calls_apart(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> None:
        for name in ("a", "b"):
            await step.options(key=name)(str, name)

    handle = await kit.start(task)

    assert await kit.steps(handle) == ["str[a]", "str[b]"]


async def test_a_key_used_twice_in_a_scope_is_refused(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> None:
        await step.options(key="a")(str)
        await step.options(key="a")(str)

    with pytest.raises(ExecutionFailed, match=r"str\[a\] was called before in this function"):
        await kit.run(task)


async def test_the_same_key_may_be_used_in_different_scopes_and_under_different_names(app: App, kit: Kit) -> None:
    async def branch() -> None:
        await step.options(key="a")(str)

    @app.task
    async def task() -> None:
        await step.options(key="a")(str)
        await step.options(key="a")(int)
        await gather(branch(), branch())

    handle = await kit.start(task)

    assert sorted(await kit.steps(handle)) == ["gather", "gather[0]/str[a]", "gather[1]/str[a]", "int[a]", "str[a]"]


async def test_keyed_calls_may_change_their_order(app: App, kit: Kit) -> None:
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


async def test_a_record_says_where_a_call_stands_and_of_what_kind_it_is(app: App, kit: Kit) -> None:
    async def branch() -> None:
        await step(int, "7")

    @app.task
    async def task() -> None:
        await step(str)
        await step.options(key="a")(str, "x")
        await gather(branch())
        await sleep("1h")

    handle = await kit.start(task)

    found = {item.name: (item.status, *_placed(item.payload)) for item in await kit.engine.executions.steps(handle.id)}
    assert found == {
        "str": ("ok", "", 0, "step"),
        "str[a]": ("ok", "", -1, "step"),
        "gather[0]/int": ("ok", "gather[0]/", 0, "step"),
        "gather": ("ok", "", 1, "gather"),
        "sleep": ("open", "", 2, "sleep"),
    }


def _placed(payload: bytes) -> tuple[str, int, str]:
    head: dict[str, Any] = json.loads(payload)[0]
    return head.get("scope", ""), head["index"], head["kind"]


async def test_a_record_holds_the_tries_and_the_due_time_of_a_step_that_is_tried_again(app: App, kit: Kit) -> None:
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


async def test_a_call_is_awaited_once(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> str:
        call = step(str, "x")
        await call
        try:
            await call
        except InvalidRequest as refused:
            return refused.code
        return "twice"

    assert await kit.run(task) == "awaited_twice"
