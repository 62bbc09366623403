"""Callbacks: a token that is durable before it is seen, and one answer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import pytest

from flowfabric import App, ExecutionFailed, InvalidRequest, Received, TimedOut, callback, sleep, step
from flowfabric.engine import WaitpointState
from flowfabric.testing import Kit
from tests.end_to_end.asgi.browsing import Browser
from tests.end_to_end.durable.kits import NewKit


@dataclass
class Export:
    rows: int


async def test_a_callback_is_named_after_what_it_is_for(app: App, kit: Kit) -> None:
    sent: list[str] = []

    @app.task
    async def task() -> int:
        reply = callback("export", Export)
        await step(sent.append, await reply.token())
        return (await reply).value.rows

    handle = await kit.start(task)
    await app.signal(sent[0], "callback", {"rows": 7})

    assert await kit.finish(handle) == 7
    assert await kit.steps(handle) == ["callback:export", "list.append"]


async def test_the_waitpoint_is_durable_before_its_token_is_seen(app: App, kit: Kit) -> None:
    found: list[WaitpointState] = []

    @app.task
    async def task() -> None:
        reply = callback("export", int)
        assert await kit.engine.waitpoints.list(handle.id) == []
        await reply.token()
        found.extend(item.state for item in await kit.engine.waitpoints.list(handle.id))
        await reply

    handle = await task.submit()
    await kit.work()

    assert found[0] is not WaitpointState.CLOSED


async def test_every_run_and_every_question_has_the_same_token(app: App, kit: Kit) -> None:
    seen: set[str] = set()

    @app.task
    async def task() -> int:
        reply = callback("export", int)
        seen.update([await reply.token(), await reply.token()])
        await sleep("1h")
        seen.add(await reply.token())
        return (await reply).value

    handle = await kit.start(task)
    await kit.advance("2h")
    [token] = seen
    await app.signal(token, "callback", 8)

    assert await kit.finish(handle) == 8
    assert seen == {token}


async def test_an_answer_that_comes_before_the_wait_is_kept(app: App, kit: Kit) -> None:
    sent: list[str] = []

    @app.task
    async def task() -> int:
        reply = callback("export", int)
        await step(sent.append, await reply.token())
        await sleep("1h")
        return (await reply).value

    handle = await kit.start(task)
    await app.signal(sent[0], "callback", 8)

    assert await kit.finish(handle) == 8


async def test_the_url_of_a_callback_is_under_that_of_the_app(app: App, kit: Kit) -> None:
    sent: list[str] = []

    @app.task
    async def task() -> None:
        reply = callback("export", int)
        token, url = await reply.token(), await reply.url()
        sent.append(url.removesuffix(token))
        await reply

    _ = await kit.start(task)

    [base] = set(sent)
    assert base.startswith("https://shop.example/ff/")


async def test_without_the_address_of_the_app_there_are_no_urls(new_kit: NewKit) -> None:
    app = App("durable.db")

    @app.task
    async def task() -> str:
        reply = callback("export", int, timeout="1h")
        try:
            await reply.url()
        except InvalidRequest as refused:
            await reply.token()
            await reply
            return refused.code
        return "had one"

    async with new_kit(app) as kit:
        assert await kit.run(task) == "no_url"


async def test_a_callback_times_out(app: App, kit: Kit) -> None:
    seen: list[Received[int] | TimedOut] = []

    @app.task
    async def task() -> None:
        seen.append(await callback("export", int, timeout="2h"))
        await sleep("1h")

    handle = await kit.start(task)
    due = kit.now() + timedelta(hours=2)
    await kit.finish(handle)

    assert seen == [TimedOut(due)] * 2


async def test_an_answer_that_does_not_fit_fails_the_execution_for_good(app: App, kit: Kit) -> None:
    sent: list[str] = []

    @app.task
    async def task() -> int:
        reply = callback("export", int)
        await step(sent.append, await reply.token())
        return (await reply).value

    handle = await kit.start(task)
    await app.signal(sent[0], "callback", "many")
    await kit.work()

    with pytest.raises(ExecutionFailed, match="callback:export got a payload that does not fit"):
        await handle


async def test_a_payload_that_does_not_fit_is_refused_at_the_door_for_everyone_who_still_waits(
    app: App, kit: Kit
) -> None:
    addresses: list[str] = []

    @app.task
    async def task() -> int:
        reply = callback("export", Export)
        await step(addresses.append, await reply.url())
        return (await reply).value.rows

    first, second = await kit.start(task), await kit.start(task)
    doors = [address.removeprefix("https://shop.example/ff") for address in addresses]
    browser = Browser(app.asgi())
    assert (await browser.post_json(doors[0], {"rows": 3})).status == 200
    assert await kit.finish(first) == 3

    refused = await browser.post_json(doors[1], {"row": 4})

    assert (refused.status, "rows" in refused.value["error"]) == (422, True)
    assert (await browser.post_json(doors[1], {"rows": 4})).status == 200
    assert await kit.finish(second) == 4


async def test_the_forms_of_callbacks_are_remembered_up_to_a_limit(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> None:
        for number in range(1_001):
            reply = callback(f"export-{number}", int)
            reply.is_awaited = True

    await kit.run(task)

    assert len(app.callbacks) == 1_000
    assert ("task", "callback:export-0") not in app.callbacks
