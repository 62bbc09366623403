"""Where the application stands: alone under a server, behind a prefix, or mounted in a larger application."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from flowfabric.asgi import ASGIApp, asgi_app
from flowfabric.engine import Engine, InvalidRequest, Unavailable
from flowfabric.sdk.links import callback_url, link
from flowfabric.testing import VirtualClock
from tests.end_to_end.asgi.browsing import Browser, asked_of, called_back, exchange, path_of, state_of, token_of

BASE = "https://shop.example/ff/links/"


def application(engine: Engine, clock: VirtualClock) -> ASGIApp:
    async def engine_of() -> Engine:
        return engine

    return asgi_app(engine_of, now=clock.now)


def path_in(address: str) -> str:
    assert address.startswith("https://shop.example/")
    return address.removeprefix("https://shop.example")


async def test_mounted_in_starlette_links_and_callbacks_lead_to_it(engine: Engine, clock: VirtualClock) -> None:
    inner = Mount("/links", app=application(engine, clock))
    browser = Browser(Starlette(routes=[Mount("/ff", routes=[inner])]))
    wait, call = await asked_of(engine, "ops"), await called_back(engine)
    approval = path_in(link(BASE, token_of(wait, "ops")))
    assert "Approve" in (await browser.get(approval)).text
    assert (await browser.post_form(approval, decision="approve")).status == 200
    assert (await browser.post_json(path_in(callback_url(BASE, call.token("callback:export"))), {})).status == 200
    assert [await state_of(engine, each) for each in (wait, call)] == ["waiting", "waiting"]


async def test_a_server_may_tell_the_prefix_or_take_it_off(engine: Engine, clock: VirtualClock) -> None:
    wait = await asked_of(engine, "ops")
    path, app = path_of(token_of(wait, "ops")), application(engine, clock)
    for before, root in (("", ""), ("/ff", "/ff"), ("/ff", "/ff/"), ("", "/ff")):
        scope = {"type": "http", "method": "GET", "path": before + path, "root_path": root, "headers": []}
        assert (await exchange(app, scope)).status == 200
    scope = {"type": "http", "method": "GET", "path": f"/ff{path}", "root_path": "/f", "headers": []}
    assert (await exchange(app, scope)).status == 404


async def lifespan(app: ASGIApp) -> list[Any]:
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "lifespan"}, receive, send)
    return sent


async def test_alone_it_opens_the_engine_first_and_closes_it_last(engine: Engine) -> None:
    calls: list[str] = []

    async def engine_of() -> Engine:
        calls.append("opened")
        return engine

    async def close() -> None:
        calls.append("closed")

    sent = await lifespan(asgi_app(engine_of, close=close))
    assert [message["type"] for message in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert calls == ["opened", "closed"]


async def test_a_store_that_is_down_may_come_but_a_wrong_call_never_works() -> None:
    async def down() -> Engine:
        raise Unavailable("connection_lost", "it is gone")

    async def wrong() -> Engine:
        raise InvalidRequest("invalid_url", "say where the store is")

    assert (await lifespan(asgi_app(down)))[0]["type"] == "lifespan.startup.complete"
    failed = (await lifespan(asgi_app(wrong)))[0]
    assert failed == {"type": "lifespan.startup.failed", "message": "invalid_url: say where the store is"}


async def test_what_is_not_http_is_turned_away(engine: Engine, clock: VirtualClock) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    app = application(engine, clock)
    await app({"type": "websocket", "path": "/x"}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]
    with pytest.raises(ValueError, match="over HTTP"):
        await app({"type": "carrier pigeon"}, receive, send)
