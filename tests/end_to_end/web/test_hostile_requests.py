"""Hostile requests are bounded and rejected, and never cause an error in the application."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowfabric.engine import Engine
from flowfabric.web import asgi_app
from flowfabric.web.request import MAX_BODY_BYTES
from tests.end_to_end.web.browser import (
    FORM,
    Browser,
    callback_path,
    exchange,
    path_of,
    state_of,
    suspend_for_approvals,
    suspend_for_callback,
    token_of,
)
from tests.expectations import nothing_written
from tests.stores import TestStore, snapshot

JSON = "application/json"


@pytest.fixture
async def path(engine: Engine) -> str:
    """Return the path of a pending decision."""
    return path_of(token_of(await suspend_for_approvals(engine, "ops"), "ops"))


async def test_payload_above_the_size_limit_is_rejected(browser: Browser, engine: Engine) -> None:
    wait = await suspend_for_callback(engine)
    where = callback_path(wait.token("callback:export"))
    largest = b'"' + b"x" * (MAX_BODY_BYTES - 2) + b'"'
    assert (await browser.post(where, largest + b" ", JSON)).status == 413
    assert (await browser.send_request("POST", where, [largest, b" "], [("content-type", JSON)])).status == 413
    assert (await browser.post(where, largest, JSON)).status == 200


async def test_wrong_content_length_is_rejected(browser: Browser, path: str) -> None:
    expected_statuses = {"5": 400, "99": 400, "-1": 400, "x": 400, "": 400, "٣": 400, "9" * 20_000: 431, "9" * 19: 413}
    for length, status in expected_statuses.items():
        headers = [("content-type", FORM), ("content-length", length.encode().decode("latin-1"))]
        assert (await browser.send_request("POST", path, [b"decision=approve"], headers)).status == status
    headers = [("content-type", FORM), ("content-length", "16"), ("content-length", "16")]
    assert (await browser.send_request("POST", path, [b"decision=approve"], headers)).status == 400


async def test_other_content_types_and_compressed_bodies_are_rejected(browser: Browser, path: str) -> None:
    for content_type in ("", "text/plain", "multipart/form-data; boundary=x", "text/json", "application/octet-stream"):
        assert (await browser.post(path, b"decision=approve", content_type)).status == 415
        assert (await browser.post("/callback" + path, b"{}", content_type)).status == 415
    for where, kind in ((path, FORM), ("/callback" + path, JSON)):
        assert (await browser.post(where, b"{}", kind, [("content-encoding", "gzip")])).status == 415


async def test_too_many_or_too_long_headers_are_rejected(browser: Browser, path: str) -> None:
    for headers in ([("x", "y")] * 101, [("x", "y" * 20_000)]):
        assert (await browser.send_request("GET", path, [b""], headers)).status == 431


async def test_too_long_query_is_rejected(browser: Browser, engine: Engine, path: str) -> None:
    async def get_engine() -> Engine:
        return engine

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"x" * 5000, "headers": []}
    assert (await exchange(asgi_app(get_engine), scope)).status == 414


INVALID_FORMS = [
    b"decision=approve&decision=reject", b"decision=approve&comment=%ff", b"decision=approve&comment=%00",
    b"decision=approve&comment=" + b"x" * 2001, b"&".join(b"f%d=1" % number for number in range(20)), b"\xff",
    b"decision", b"",
]  # fmt: skip


async def test_invalid_forms_and_idempotency_keys_are_rejected(browser: Browser, path: str, store: TestStore) -> None:
    async with nothing_written(store):
        for body in INVALID_FORMS:
            assert (await browser.post(path, body, FORM)).status == 400, body[:40]
        for key in ("", "x" * 257, "a\tb", "\x7f", "\x1b[2J"):
            assert (await browser.post_form(path, [("idempotency-key", key)], decision="approve")).status == 400


async def test_missing_body_times_out(engine: Engine, path: str) -> None:
    async def get_engine() -> Engine:
        return engine

    async def never_receive() -> Any:
        await asyncio.Event().wait()

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"content-type", FORM.encode())]}
    await asgi_app(get_engine, body_timeout_s=0.01)(scope, never_receive, send)
    assert sent[0]["status"] == 408


async def test_endless_empty_body_pieces_are_rejected(browser: Browser, path: str) -> None:
    assert (await browser.send_request("POST", path, [b""] * 20_000, [("content-type", FORM)])).status == 413


async def test_disconnected_client_gets_no_reply(engine: Engine, path: str) -> None:
    async def get_engine() -> Engine:
        return engine

    async def receive_disconnect() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        raise AssertionError("the client is disconnected")

    scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"content-type", FORM.encode())]}
    await asgi_app(get_engine)(scope, receive_disconnect, send)


async def test_internal_error_is_logged_without_the_token_and_hidden_from_the_client(
    engine: Engine, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def failing_engine() -> Engine:
        raise RuntimeError(f"broken at {path}")

    reply = await Browser(asgi_app(failing_engine)).get(path)
    assert (reply.status, "broken" in reply.text) == (500, False)
    assert "RuntimeError" in caplog.text and path[1:] not in caplog.text


MARK = "<x'\"&mark>"
PATHS = st.one_of(
    st.text(max_size=60).map(lambda text: f"/{text}"),
    st.sampled_from(["/", "", "//", "/callback", "/callback/", "/../x", "/%2e%2e", "/\x00", f"/{MARK}", "/a/b/c"]),
    st.text("ABCabc019_-.", max_size=600).map(lambda text: f"/ffw1.k.{text}"),
)
HEADER = st.text(st.characters(max_codepoint=255), max_size=40)
NAMES = st.sampled_from(["content-type", "content-length", "idempotency-key", "content-encoding", "host", "accept"])
TYPES = st.one_of(st.sampled_from([FORM, JSON, "application/x+json", "text/html"]), HEADER)
BODIES = st.one_of(
    st.binary(max_size=200),
    st.sampled_from([b"decision=maybe", b'{"decision": []}', b"{}", b"[]", b'{"decision": "' + MARK.encode() + b'"}']),
    st.text(max_size=60).map(lambda text: f"decision={text}&comment={text}".encode(errors="replace")),
)


async def test_random_requests_change_nothing_and_are_not_echoed(
    browser: Browser, engine: Engine, store: TestStore
) -> None:
    wait, call = await suspend_for_approvals(engine, "ops"), await suspend_for_callback(engine)
    token = path_of(token_of(wait, "ops"))
    valid_paths = [token, f"/callback{token}", path_of(call.token("callback:export"))]
    before, loop = await snapshot(store), asyncio.get_running_loop()

    @given(
        st.sampled_from(["GET", "HEAD", "POST", "PUT", "OPTIONS", "", "get", "\x00"]),
        st.one_of(PATHS, st.sampled_from(valid_paths)),
        TYPES,
        st.lists(st.tuples(NAMES, HEADER), max_size=4),
        st.lists(BODIES, min_size=1, max_size=3),
    )
    @settings(suppress_health_check=list(HealthCheck))
    def send_random_request(
        method: str, path: str, kind: str, headers: list[tuple[str, str]], pieces: list[bytes]
    ) -> None:
        request = browser.send_request(method, path, pieces, [("content-type", kind), *headers])
        reply = asyncio.run_coroutine_threadsafe(request, loop).result(30)
        assert reply.status in (200, 400, 404, 405, 408, 413, 415, 431)
        assert MARK not in reply.text
        assert (reply.status == 200) <= (method in ("GET", "HEAD") and path == token)
        assert reply.headers["x-content-type-options"] == "nosniff"

    await asyncio.to_thread(send_random_request)
    assert await snapshot(store) == before
    assert [await state_of(engine, suspended) for suspended in (wait, call)] == ["suspended", "suspended"]
