"""Callbacks: the token is durable before it is returned, and one reply is accepted."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import pytest

from flowfabric import App, InvalidRequest, Received, TimedOut, callback, sleep, step
from flowfabric.engine import WaitpointState
from flowfabric.testing import Kit
from tests.end_to_end.durable.kits import KitFactory
from tests.end_to_end.web.browser import Browser


@dataclass
class Export:
    rows: int


async def test_callback_record_has_the_name_of_the_callback(app: App, kit: Kit) -> None:
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


async def test_waitpoint_is_durable_before_its_token_is_returned(app: App, kit: Kit) -> None:
    states: list[WaitpointState] = []

    @app.task
    async def task() -> None:
        reply = callback("export", int)
        assert await kit.engine.waitpoints.list(handle.id) == []
        await reply.token()
        states.extend(waitpoint.state for waitpoint in await kit.engine.waitpoints.list(handle.id))
        await reply

    handle = await task.submit()
    await kit.work()

    assert states[0] is not WaitpointState.CLOSED


async def test_token_is_the_same_in_every_run_and_call(app: App, kit: Kit) -> None:
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


async def test_reply_that_arrives_before_the_wait_is_kept(app: App, kit: Kit) -> None:
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


async def test_callback_url_starts_with_the_url_of_the_app(app: App, kit: Kit) -> None:
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


async def test_app_without_a_url_has_no_callback_urls(new_kit: KitFactory) -> None:
    app = App("durable.db")

    @app.task
    async def task() -> str:
        reply = callback("export", int, timeout="1h")
        try:
            await reply.url()
        except InvalidRequest as error:
            await reply.token()
            await reply
            return error.code
        return "has a url"

    async with new_kit(app) as kit:
        assert await kit.run(task) == "no_url"


async def test_callback_times_out(app: App, kit: Kit) -> None:
    seen: list[Received[int] | TimedOut] = []

    @app.task
    async def task() -> None:
        seen.append(await callback("export", int, timeout="2h"))
        await sleep("1h")

    handle = await kit.start(task)
    due = kit.now() + timedelta(hours=2)
    await kit.finish(handle)

    assert seen == [TimedOut(due)] * 2


async def test_invalid_reply_is_refused_and_the_callback_stays_open(app: App, kit: Kit) -> None:
    sent: list[str] = []

    @app.task
    async def task() -> int:
        reply = callback("export", int)
        await step(sent.append, await reply.token())
        return (await reply).value

    handle = await kit.start(task)
    with pytest.raises(InvalidRequest, match="payload_mismatch"):
        await app.signal(sent[0], "callback", "many")
    await app.signal(sent[0], "callback", 3)

    assert await kit.finish(handle) == 3


async def test_invalid_payload_is_rejected_by_the_web_app(app: App, kit: Kit) -> None:
    urls: list[str] = []

    @app.task
    async def task() -> int:
        reply = callback("export", Export)
        await step(urls.append, await reply.url())
        return (await reply).value.rows

    first, second = await kit.start(task), await kit.start(task)
    paths = [url.removeprefix("https://shop.example/ff") for url in urls]
    browser = Browser(app.asgi())
    assert (await browser.post_json(paths[0], {"rows": 3})).status == 200
    assert await kit.finish(first) == 3

    rejected = await browser.post_json(paths[1], {"row": 4})

    assert (rejected.status, "rows" in rejected.value["error"]) == (422, True)
    assert (await browser.post_json(paths[1], {"rows": 4})).status == 200
    assert await kit.finish(second) == 4


async def test_number_of_remembered_callback_types_is_limited(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> None:
        for number in range(1_001):
            reply = callback(f"export-{number}", int)
            reply.is_awaited = True

    await kit.run(task)

    assert len(app.callbacks) == 1_000
    assert ("task", "callback:export-0") not in app.callbacks
