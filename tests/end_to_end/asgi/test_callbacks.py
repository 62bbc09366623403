"""Callbacks: a payload that is posted wakes whoever waits for it, once, if it fits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flowfabric.asgi import asgi_app
from flowfabric.engine import Engine, Unavailable
from flowfabric.testing import VirtualClock
from tests.end_to_end.asgi.browsing import Browser, asked_of, callback_path, called_back, path_of, state_of, token_of
from tests.facts import nothing_written
from tests.scenarios import Wait, leased
from tests.stores import TestStore


def where(wait: Wait) -> str:
    return callback_path(wait.token("callback:export"))


def complaint(kind: str, key: str, payload: bytes) -> str | None:
    """Knows one kind, which wants rows."""
    if kind != "export":
        return None
    assert key == "callback:export"
    return None if "rows" in json.loads(payload) else "rows: Field required"


async def test_a_payload_wakes_whoever_waits_for_it(browser: Browser, engine: Engine) -> None:
    wait = await called_back(engine)
    reply = await browser.post(where(wait), b' {"rows": 3}', "application/json; charset=utf-8")
    assert (reply.status, reply.value) == (200, {"accepted": True})
    assert await state_of(engine, wait) == "waiting"
    [signal] = await engine.signals.observe(wait.id)
    assert (signal.name, signal.payload, signal.encoding) == ("callback", b' {"rows": 3}', "json")


async def test_a_payload_may_come_before_anybody_waits(browser: Browser, engine: Engine) -> None:
    lease = await leased(engine)
    early = await engine.waitpoints.create(lease.fence, "callback:export")
    assert early.token is not None
    assert (await browser.post_json(callback_path(early.token), [1])).status == 200


@pytest.mark.parametrize("headers", [[], [("Idempotency-Key", "evt-1")]])
async def test_a_repeated_callback_is_taken_once_and_answered_alike(
    browser: Browser, engine: Engine, headers: list[tuple[str, str]]
) -> None:
    wait = await called_back(engine)
    replies = [await browser.post_json(where(wait), {"rows": 3}, headers) for _ in range(2)]
    assert replies[0] == replies[1]
    assert len(await engine.signals.observe(wait.id, include_unmatched=True)) == 1
    assert (await browser.post_json(where(wait), {"rows": 4})).status == 404


async def test_the_senders_key_is_the_signals(browser: Browser, engine: Engine) -> None:
    wait = await called_back(engine)
    await browser.post_json(where(wait), 1, [("Idempotency-Key", "evt-1")])
    [signal] = await engine.signals.observe(wait.id)
    assert signal.key == "evt-1"


async def test_a_payload_that_does_not_fit_is_refused_where_its_kind_is_known(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    async def engine_of() -> Engine:
        return engine

    browser = Browser(asgi_app(engine_of, payload_check=complaint, now=clock.now))
    known, unknown = [await called_back(engine, submit={"kind": kind}) for kind in ("export", "import")]
    async with nothing_written(store):
        reply = await browser.post_json(where(known), {"row": 3})
        assert (reply.status, reply.value) == (422, {"error": "rows: Field required"})
    assert (await browser.post_json(where(unknown), {"row": 3})).status == 200
    assert (await browser.post_json(where(known), {"rows": 3})).status == 200
    assert (await browser.post_json(where(known), {"rows": 3})).status == 200, "a repeat"
    forged = await browser.post_json(where(known)[:-1], {"row": 3})
    assert (forged.status, forged) == (404, await browser.post_json(where(known), {"row": 3}))


async def test_an_approvers_token_opens_no_callback(browser: Browser, engine: Engine, store: TestStore) -> None:
    wait = await asked_of(engine, "ops", name="callback:x")
    token = token_of(wait, "ops", name="callback:x")
    async with nothing_written(store):
        assert (await browser.post_json(callback_path(token), {})).status == 404
    assert (await browser.get(path_of(token))).status == 200


async def test_a_callback_cannot_be_looked_at(browser: Browser, engine: Engine) -> None:
    wait = await called_back(engine)
    for path in (where(wait), "/callback/x"):
        reply = await browser.get(path)
        assert (reply.status, reply.headers["allow"]) == (405, "POST")


JSON_THAT_IS_REFUSED = [
    b"", b"{", b"nul", b"NaN", b"[Infinity]", b"1e400", b'{"a":1,"a":2}', b"\xff", b"\xef\xbb\xbf1", b'"\\ud800"',
    b'{"\\udc00":1}', '{"a":1}'.encode("utf-16"), b"1" * 5000, b"[" * 65 + b"]" * 65, b"[" * 100_000, b"1 2", b"\x00",
]  # fmt: skip


async def test_what_readers_would_not_understand_alike_is_not_taken(
    browser: Browser, engine: Engine, store: TestStore
) -> None:
    wait = await called_back(engine)
    async with nothing_written(store):
        for body in JSON_THAT_IS_REFUSED:
            reply = await browser.post(where(wait), body, "application/json")
            assert (reply.status, list(reply.value)) == (400, ["error"]), body[:20]


async def test_every_other_json_value_is_taken_as_it_came(browser: Browser, engine: Engine) -> None:
    for body in (b"null", b"0", b'"\\u0000"', b"[" * 64 + b"]" * 64, '"ä€𝄞"'.encode(), b'" "' + b" " * 99):
        wait = await called_back(engine)
        assert (await browser.post(where(wait), body, "application/cloudevents+json")).status == 200
        assert [signal.payload for signal in await engine.signals.observe(wait.id)] == [body]


async def test_while_the_store_is_down_senders_are_asked_to_come_again(clock: VirtualClock) -> None:
    async def engine_of() -> Engine:
        raise Unavailable("connection_lost", "the database is gone")

    browser = Browser(asgi_app(engine_of, now=clock.now))
    token = "ffw1.k." + "A" * 60 + "." + "A" * 43
    replies: list[Any] = [
        await browser.post_json(f"/callback/{token}", {}),
        await browser.post_form(f"/{token}", decision="approve"),
        await browser.get(f"/{token}"),
    ]
    assert [(reply.status, reply.headers["retry-after"]) for reply in replies] == [(503, "5")] * 3
    assert "gone" not in replies[0].text
