"""HTTP responses: HTML pages for people, JSON for programs, and the security headers of both.

Responses must not be cached, framed, sniffed or indexed, and send no referrer.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from flowfabric.web.pages import STYLE, message_page

Send = Callable[[Any], Awaitable[None]]

_ERROR_TITLE = "That did not work"

_STYLE_HASH = "sha256-" + base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
_CONTENT_POLICY = (
    f"default-src 'none'; style-src '{_STYLE_HASH}'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_SECURITY_HEADERS = (
    (b"content-security-policy", _CONTENT_POLICY.encode()),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"x-robots-tag", b"noindex, nofollow"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


@dataclass(frozen=True, slots=True)
class Response:
    """A response with its status, body, content type, and headers other than the security headers."""

    status: int
    body: bytes
    content_type: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def with_headers(self, *headers: tuple[bytes, bytes]) -> Response:
        """Return the response with more headers."""
        return replace(self, headers=(*self.headers, *headers))


class HTTPError(Exception):
    """A refused request. The message never repeats text of the sender."""

    def __init__(self, status: int, message: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers


def html_response(page: str, status: int = 200) -> Response:
    """Return an HTML page as a response."""
    return Response(status, page.encode(errors="replace"), b"text/html; charset=utf-8")


def json_response(value: dict[str, Any], status: int = 200) -> Response:
    """Return a JSON document as a response."""
    return Response(status, json.dumps(value).encode(), b"application/json")


def error_response(error: HTTPError, *, as_json: bool) -> Response:
    """Return an error as JSON or as a page."""
    if as_json:
        response = json_response({"error": error.message}, error.status)
    else:
        response = html_response(message_page(_ERROR_TITLE, error.message), error.status)
    return response.with_headers(*error.headers)


async def send_response(send: Send, response: Response, *, with_body: bool = True) -> None:
    """Send a response. Omit the body in reply to a HEAD request."""
    headers = [
        (b"content-type", response.content_type),
        (b"content-length", b"%d" % len(response.body)),
        *_SECURITY_HEADERS,
        *response.headers,
    ]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body if with_body else b""})
