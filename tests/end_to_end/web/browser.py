"""A browser without a network; it calls an ASGI application directly and parses the reply."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from flowfabric.engine import AnyOf, ApprovalPrompt, ByName, Count, Engine, NewWaitpoint, Secret, Single
from flowfabric.web import ASGIApp
from tests.scenarios import Wait, suspended

FORM = "application/x-www-form-urlencoded"
Headers = Iterable[tuple[str, str]]


@dataclass(frozen=True)
class Reply:
    """A status, headers by lower-case name, and a body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def value(self) -> Any:
        return json.loads(self.body)


class Browser:
    """A client for one application; `root` is the prefix under which the application is mounted."""

    def __init__(self, app: ASGIApp, root: str = "") -> None:
        self._app, self._root = app, root

    async def get(self, path: str, method: str = "GET") -> Reply:
        """Return the reply to a request without a body."""
        return await self.send_request(method, path)

    async def post_form(self, path: str, headers: Headers = (), **fields: str) -> Reply:
        """Post form fields and return the reply."""
        return await self.post(path, urlencode(fields).encode(), FORM, headers)

    async def post_json(self, path: str, value: Any, headers: Headers = ()) -> Reply:
        """Post a JSON value and return the reply."""
        return await self.post(path, json.dumps(value).encode(), "application/json", headers)

    async def post(self, path: str, body: bytes, content_type: str, headers: Headers = ()) -> Reply:
        """Post a body and return the reply."""
        sent = [("content-type", content_type), ("content-length", str(len(body))), *headers]
        return await self.send_request("POST", path, [body], sent)

    async def send_request(
        self, method: str, path: str, pieces: Sequence[bytes] = (b"",), headers: Headers = ()
    ) -> Reply:
        """Send a request whose body arrives in pieces and return the reply."""
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "https",
            "path": self._root + path, "raw_path": b"", "query_string": b"", "root_path": self._root,
            "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers],
        }  # fmt: skip
        return await exchange(self._app, scope, pieces)


async def exchange(app: ASGIApp, scope: dict[str, Any], pieces: Sequence[bytes] = (b"",)) -> Reply:
    """Send one request and return its complete reply."""
    incoming = (
        {"type": "http.request", "body": piece, "more_body": number < len(pieces)}
        for number, piece in enumerate(pieces, start=1)
    )
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return next(incoming, {"type": "http.disconnect"})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start, *rest = sent
    assert start["type"] == "http.response.start"
    assert [message["type"] for message in rest] == ["http.response.body"] * len(rest)
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    return Reply(start["status"], headers, b"".join(message.get("body", b"") for message in rest))


def path_of(token: Secret) -> str:
    """Return the path where an approver decides."""
    return f"/{token.reveal()}"


def callback_path(token: Secret) -> str:
    """Return the path that accepts a payload."""
    return f"/callback/{token.reveal()}"


async def suspend_for_approvals(
    engine: Engine, *approvers: str, name: str = "refund", prompt: ApprovalPrompt | None = None, **options: Any
) -> Wait:
    """Suspend an execution until all of these approvers approve or one rejects."""
    keys = [f"approval:{name}[{approver}]" for approver in approvers]
    waitpoints = [
        NewWaitpoint(key, approver=approver, prompt=prompt) for key, approver in zip(keys, approvers, strict=True)
    ]
    condition = AnyOf(
        [
            Count(len(keys), distinct="sources", matcher=ByName("approve"), waitpoints=keys),
            Count(1, distinct="sources", matcher=ByName("reject"), waitpoints=keys),
        ]
    )
    return await suspended(engine, waitpoints, condition, **options)


def token_of(wait: Wait, approver: str, name: str = "refund") -> Secret:
    """Return the token of one approver."""
    return wait.token(f"approval:{name}[{approver}]")


async def suspend_for_callback(engine: Engine, **options: Any) -> Wait:
    """Suspend an execution until a callback arrives."""
    return await suspended(
        engine, [NewWaitpoint("callback:export")], Single("callback:export", ByName("callback")), **options
    )


async def state_of(engine: Engine, wait: Wait) -> str:
    """Return the state of the execution."""
    return str((await engine.executions.describe(wait.id)).state)
