"""HTTP responses: HTML pages for people, JSON for programs, and the security headers of both.

Pages are self-contained: no scripts, no external resources, and every text is escaped. Responses must not be cached,
framed, sniffed or indexed, and send no referrer.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from html import escape
from typing import Any

Send = Callable[[Any], Awaitable[None]]

MAX_COMMENT_CHARACTERS = 2000
_ERROR_TITLE = "That did not work"

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:34rem;margin:3rem auto;padding:0 1rem;"
    "color:#222;background:#fff}"
    "h1{font-size:1.4rem;overflow-wrap:anywhere}p{overflow-wrap:anywhere}label{display:block;margin:1rem 0 .3rem}"
    "textarea{width:100%;height:6rem;font:inherit;box-sizing:border-box}"
    "button{font:inherit;padding:.5rem 1.5rem;margin:1rem 1rem 0 0;border:1px solid #555;border-radius:4px;color:#fff}"
    ".approve{background:#176c36}.reject{background:#a11d2a}"
)
_STYLE_HASH = "sha256-" + base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
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


def approval_page(title: str, task: str, approver: str | None, expires_at: datetime | None) -> str:
    """Return the page that asks for a decision. Its form posts to its own address, so any prefix works."""
    to = f"<p>The request is for <strong>{_escape(approver)}</strong>.</p>" if approver else ""
    until = f"<p>It expires at {expires_at:%Y-%m-%d %H:%M} UTC.</p>" if expires_at else ""
    return _page(
        f"Approval: {_escape(title)}",
        f"<p>The task <strong>{_escape(task)}</strong> is waiting for a decision.</p>{to}{until}"
        '<form method="post">'
        '<label for="comment">Comment (optional)</label>'
        f'<textarea id="comment" name="comment" maxlength="{MAX_COMMENT_CHARACTERS}"></textarea>'
        '<button class="approve" name="decision" value="approve">Approve</button>'
        '<button class="reject" name="decision" value="reject">Reject</button>'
        "</form>",
    )


def message_page(title: str, message: str) -> str:
    """Return a page with one message."""
    return _page(_escape(title), f"<p>{_escape(message)}</p>")


def _page(title: str, content: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>{content}</body></html>"
    )


def _escape(text: str) -> str:
    """Escape a text for HTML, and replace characters that could hide or reorder the text after them."""
    return escape("".join(letter if letter.isprintable() else " " for letter in text), quote=True)
