"""A posted callback payload resumes the waiting execution once, if the payload is valid."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flowfabric.engine import Engine, Unavailable
from flowfabric.testing import VirtualClock
from flowfabric.web import asgi_app
from tests.end_to_end.web.browser import (
    Browser,
    callback_path,
    path_of,
    state_of,
    suspend_for_approvals,
    suspend_for_callback,
    token_of,
)
from tests.expectations import nothing_written
from tests.scenarios import Wait, leased
from tests.stores import TestStore


def path_for(wait: Wait) -> str:
    return callback_path(wait.token("callback:export"))


def check_payload(kind: str, key: str, payload: bytes) -> str | None:
    """Require the field `rows` for kind `export`, and accept any payload for other kinds."""
    if kind != "export":
        return None
    assert key == "callback:export"
    return None if "rows" in json.loads(payload) else "rows: Field required"


async def test_payload_resumes_the_waiting_execution(browser: Browser, engine: Engine) -> None:
    wait = await suspend_for_callback(engine)
    reply = await browser.post(path_for(wait), b' {"rows": 3}', "application/json; charset=utf-8")
    assert (reply.status, reply.value) == (200, {"accepted": True})
    assert await state_of(engine, wait) == "waiting"
    [signal] = await engine.signals.list(wait.id)
    assert (signal.name, signal.payload, signal.encoding) == ("callback", b' {"rows": 3}', "json")


async def test_payload_may_arrive_before_the_execution_waits(browser: Browser, engine: Engine) -> None:
    lease = await leased(engine)
    early = await engine.waitpoints.create(lease.fence, "callback:export")
    assert early.token is not None
    assert (await browser.post_json(callback_path(early.token), [1])).status == 200


@pytest.mark.parametrize("headers", [[], [("Idempotency-Key", "evt-1")]])
async def test_repeated_callback_is_stored_once_and_gets_the_same_reply(
    browser: Browser, engine: Engine, headers: list[tuple[str, str]]
) -> None:
    wait = await suspend_for_callback(engine)
    replies = [await browser.post_json(path_for(wait), {"rows": 3}, headers) for _ in range(2)]
    assert replies[0] == replies[1]
    assert len(await engine.signals.list(wait.id, include_unmatched=True)) == 1
    assert (await browser.post_json(path_for(wait), {"rows": 4})).status == 404


async def test_signal_has_the_idempotency_key_of_the_request(browser: Browser, engine: Engine) -> None:
    wait = await suspend_for_callback(engine)
    await browser.post_json(path_for(wait), 1, [("Idempotency-Key", "evt-1")])
    [signal] = await engine.signals.list(wait.id)
    assert signal.key == "evt-1"


async def test_invalid_payload_of_a_known_kind_is_rejected(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    async def get_engine() -> Engine:
        return engine

    browser = Browser(asgi_app(get_engine, check_payload=check_payload))
    known, unknown = [await suspend_for_callback(engine, submit={"kind": kind}) for kind in ("export", "import")]
    async with nothing_written(store):
        reply = await browser.post_json(path_for(known), {"row": 3})
        assert (reply.status, reply.value) == (422, {"error": "rows: Field required"})
    assert (await browser.post_json(path_for(unknown), {"row": 3})).status == 200
    assert (await browser.post_json(path_for(known), {"rows": 3})).status == 200
    assert (await browser.post_json(path_for(known), {"rows": 3})).status == 200, "a repeat"
    forged = await browser.post_json(path_for(known)[:-1], {"row": 3})
    assert (forged.status, forged) == (404, await browser.post_json(path_for(known), {"row": 3}))


async def test_approval_token_is_not_accepted_for_a_callback(
    browser: Browser, engine: Engine, store: TestStore
) -> None:
    wait = await suspend_for_approvals(engine, "ops", name="callback:x")
    token = token_of(wait, "ops", name="callback:x")
    async with nothing_written(store):
        assert (await browser.post_json(callback_path(token), {})).status == 404
    assert (await browser.get(path_of(token))).status == 200


async def test_get_is_not_allowed_on_a_callback(browser: Browser, engine: Engine) -> None:
    wait = await suspend_for_callback(engine)
    for path in (path_for(wait), "/callback/x"):
        reply = await browser.get(path)
        assert (reply.status, reply.headers["allow"]) == (405, "POST")


INVALID_JSON = [
    b"", b"{", b"nul", b"NaN", b"[Infinity]", b"1e400", b'{"a":1,"a":2}', b"\xff", b"\xef\xbb\xbf1", b'"\\ud800"',
    b'{"\\udc00":1}', '{"a":1}'.encode("utf-16"), b"1" * 5000, b"[" * 65 + b"]" * 65, b"[" * 100_000, b"1 2", b"\x00",
]  # fmt: skip


async def test_ambiguous_or_invalid_json_is_rejected(browser: Browser, engine: Engine, store: TestStore) -> None:
    wait = await suspend_for_callback(engine)
    async with nothing_written(store):
        for body in INVALID_JSON:
            reply = await browser.post(path_for(wait), body, "application/json")
            assert (reply.status, list(reply.value)) == (400, ["error"]), body[:20]


async def test_valid_json_is_stored_unchanged(browser: Browser, engine: Engine) -> None:
    for body in (b"null", b"0", b'"\\u0000"', b"[" * 64 + b"]" * 64, '"ä€𝄞"'.encode(), b'" "' + b" " * 99):
        wait = await suspend_for_callback(engine)
        assert (await browser.post(path_for(wait), body, "application/cloudevents+json")).status == 200
        assert [signal.payload for signal in await engine.signals.list(wait.id)] == [body]


async def test_requests_get_retry_after_while_the_store_is_down(clock: VirtualClock) -> None:
    async def get_engine() -> Engine:
        raise Unavailable("connection_lost", "the database is gone")

    browser = Browser(asgi_app(get_engine))
    token = "ffw1.k." + "A" * 60 + "." + "A" * 43
    replies: list[Any] = [
        await browser.post_json(f"/callback/{token}", {}),
        await browser.post_form(f"/{token}", decision="approve"),
        await browser.get(f"/{token}"),
    ]
    assert [(reply.status, reply.headers["retry-after"]) for reply in replies] == [(503, "5")] * 3
    assert "gone" not in replies[0].text
