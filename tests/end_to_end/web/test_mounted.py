"""The application runs alone under a server, behind a prefix, or mounted in a larger application."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from flowfabric.engine import Engine, InvalidRequest, Unavailable
from flowfabric.runtime.signals import callback_url, link
from flowfabric.testing import VirtualClock
from flowfabric.web import ASGIApp, asgi_app
from tests.end_to_end.web.browser import (
    Browser,
    exchange,
    path_of,
    state_of,
    suspend_for_approvals,
    suspend_for_callback,
    token_of,
)

BASE = "https://shop.example/ff/links/"


def make_app(engine: Engine, clock: VirtualClock) -> ASGIApp:
    async def get_engine() -> Engine:
        return engine

    return asgi_app(get_engine)


def path_in(address: str) -> str:
    assert address.startswith("https://shop.example/")
    return address.removeprefix("https://shop.example")


async def test_links_and_callbacks_reach_the_app_mounted_in_starlette(engine: Engine, clock: VirtualClock) -> None:
    inner = Mount("/links", app=make_app(engine, clock))
    browser = Browser(Starlette(routes=[Mount("/ff", routes=[inner])]))
    wait, call = await suspend_for_approvals(engine, "ops"), await suspend_for_callback(engine)
    approval = path_in(link(BASE, token_of(wait, "ops")))
    assert "Approve" in (await browser.get(approval)).text
    assert (await browser.post_form(approval, decision="approve")).status == 200
    assert (await browser.post_json(path_in(callback_url(BASE, call.token("callback:export"))), {})).status == 200
    assert [await state_of(engine, each) for each in (wait, call)] == ["waiting", "waiting"]


async def test_server_may_pass_or_strip_the_prefix(engine: Engine, clock: VirtualClock) -> None:
    wait = await suspend_for_approvals(engine, "ops")
    path, app = path_of(token_of(wait, "ops")), make_app(engine, clock)
    for prefix, root in (("", ""), ("/ff", "/ff"), ("/ff", "/ff/"), ("", "/ff")):
        scope = {"type": "http", "method": "GET", "path": prefix + path, "root_path": root, "headers": []}
        assert (await exchange(app, scope)).status == 200
    scope = {"type": "http", "method": "GET", "path": f"/ff{path}", "root_path": "/f", "headers": []}
    assert (await exchange(app, scope)).status == 404


async def run_lifespan(app: ASGIApp) -> list[Any]:
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "lifespan"}, receive, send)
    return sent


async def test_standalone_app_opens_the_engine_at_startup_and_closes_it_at_shutdown(engine: Engine) -> None:
    calls: list[str] = []

    async def get_engine() -> Engine:
        calls.append("opened")
        return engine

    async def close() -> None:
        calls.append("closed")

    sent = await run_lifespan(asgi_app(get_engine, close=close))
    assert [message["type"] for message in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert calls == ["opened", "closed"]


async def test_startup_succeeds_while_the_store_is_down_but_fails_for_an_invalid_url() -> None:
    async def unavailable_engine() -> Engine:
        raise Unavailable("connection_lost", "it is gone")

    async def invalid_engine() -> Engine:
        raise InvalidRequest("invalid_url", "say where the store is")

    assert (await run_lifespan(asgi_app(unavailable_engine)))[0]["type"] == "lifespan.startup.complete"
    failed = (await run_lifespan(asgi_app(invalid_engine)))[0]
    assert failed == {"type": "lifespan.startup.failed", "message": "invalid_url: say where the store is"}


async def test_websockets_are_closed_and_other_protocols_raise(engine: Engine, clock: VirtualClock) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    app = make_app(engine, clock)
    await app({"type": "websocket", "path": "/x"}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]
    with pytest.raises(ValueError, match="need HTTP"):
        await app({"type": "carrier pigeon"}, receive, send)
