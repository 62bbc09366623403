"""Reading of requests that may be hostile. Their size, duration and shape are limited before the content is parsed.

This module never looks at tokens, so its errors reveal nothing about them.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest
from flowfabric.web.pages import MAX_COMMENT_CHARACTERS
from flowfabric.web.responses import HTTPError

Receive = Callable[[], Awaitable[Any]]

MAX_BODY_BYTES = 256 * 1024
MAX_JSON_DEPTH = 64
_MAX_HEADERS, _MAX_HEADER_BYTES, _MAX_QUERY_BYTES, _MAX_FIELDS = 100, 16 * 1024, 4096, 8
# A server delivers a body in pieces of at least a packet, so a regular body has fewer pieces than this.
_MAX_PIECES = 16 * 1024
_FORM, _JSON = "application/x-www-form-urlencoded", "application/json"


class ClientDisconnected(Exception):
    """The client has disconnected, so no response can be sent."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request with its method, path below the mount point, and headers by lower-case name.

    The path contains the token.
    """

    method: str
    path: str = field(repr=False)
    headers: Mapping[bytes, list[bytes]] = field(repr=False)

    def header(self, name: bytes) -> str | None:
        """Return the value of a header. Raise HTTPError if the request has this header more than once."""
        values = self.headers.get(name, [])
        if len(values) > 1:
            raise HTTPError(400, f"The header {name.decode()} is repeated.")
        return values[0].decode("latin-1").strip() if values else None

    @property
    def sends_json(self) -> bool:
        """True if the body is JSON, which means that the client is a program and not a browser form."""
        values = self.headers.get(b"content-type", [b""])
        return _media_type(values[0].decode("latin-1")) == _JSON


def parse_request(scope: Mapping[str, Any]) -> Request:
    """Return the request of an ASGI scope. Remove the prefix at which the application is mounted from the path."""
    headers: dict[bytes, list[bytes]] = {}
    for name, value in scope.get("headers", ()):
        headers.setdefault(bytes(name).lower(), []).append(bytes(value))
    path, root = scope["path"], scope.get("root_path", "").rstrip("/")
    below = path[len(root) :] if root and path.startswith(f"{root}/") else path
    return Request(scope["method"], below, headers)


def check_header_size(scope: Mapping[str, Any]) -> None:
    """Raise HTTPError for too many or too large headers, or a long query."""
    headers = list(scope.get("headers", ()))
    if len(headers) > _MAX_HEADERS or sum(len(name) + len(value) for name, value in headers) > _MAX_HEADER_BYTES:
        raise HTTPError(431, "The headers are too large.")
    if len(scope.get("query_string", b"")) > _MAX_QUERY_BYTES:
        raise HTTPError(414, "The address is too long.")


async def read_body(request: Request, receive: Receive, timeout_s: float) -> bytes:
    """Return the whole body. Raise HTTPError if it is too large, too slow, or differs from the length in its header."""
    length = _content_length(request)
    if length is not None and length > MAX_BODY_BYTES:
        raise _too_large()
    try:
        async with asyncio.timeout(timeout_s):
            body = await _receive_pieces(receive)
    except TimeoutError:
        raise HTTPError(408, "The body was not received in time.") from None
    if length is not None and length != len(body):
        raise HTTPError(400, "The length of the body differs from its content-length.")
    return body


def read_form(request: Request, body: bytes) -> dict[str, str]:
    """Return the fields of a form, or of a JSON object of strings."""
    kind = _media_type(request.header(b"content-type") or "")
    _check_encoding(request)
    if kind == _JSON:
        value = read_json(body)
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise HTTPError(400, "The body must be a JSON object of strings.")
        return value
    if kind != _FORM:
        raise HTTPError(415, f"The body must be {_FORM} or {_JSON}.")
    try:
        pairs = parse_qsl(
            _decode(body), keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS, separator="&"
        )
    except ValueError:
        raise HTTPError(400, "The form cannot be read.") from None
    if len({name for name, _ in pairs}) < len(pairs):
        raise HTTPError(400, "A field of the form is repeated.")
    return dict(pairs)


def read_payload(request: Request, body: bytes) -> bytes:
    """Return the body unchanged. Raise HTTPError unless the body is one JSON value."""
    kind = _media_type(request.header(b"content-type") or "")
    if kind != _JSON and not (kind.startswith("application/") and kind.endswith("+json")):
        raise HTTPError(415, f"The body must be {_JSON}.")
    _check_encoding(request)
    read_json(body)
    return body


def read_json(body: bytes) -> Any:
    """Return the value of a JSON text. It must be UTF-8 with finite numbers, bounded depth and no repeated names."""
    text = _decode(body)
    try:
        value = json.loads(
            text, object_pairs_hook=_read_object, parse_constant=_reject_constant, parse_float=_parse_finite
        )
    except (ValueError, RecursionError):
        raise HTTPError(400, "The body is not valid JSON.") from None
    _check_values(value)
    return value


def read_comment(fields: Mapping[str, str]) -> str:
    """Return the comment of a decision, which the client may send as `comment` or `reason`."""
    comment = (fields.get("comment") or fields.get("reason") or "").replace("\r\n", "\n").strip()
    if len(comment) > MAX_COMMENT_CHARACTERS:
        raise HTTPError(400, f"The comment must have at most {MAX_COMMENT_CHARACTERS} characters.")
    try:
        return validation.text(comment, "comment")
    except InvalidRequest:
        raise HTTPError(400, "The comment contains characters that cannot be stored.") from None


def read_key(request: Request) -> str | None:
    """Return the idempotency key of the request."""
    value = request.header(b"idempotency-key")
    try:
        return None if value is None else validation.name(value, "key")
    except InvalidRequest:
        raise HTTPError(400, "Idempotency-Key must be 1 to 256 printable characters.") from None


async def _receive_pieces(receive: Receive) -> bytes:
    body = bytearray()
    for _ in range(_MAX_PIECES):
        piece = await receive()
        if piece["type"] != "http.request":
            raise ClientDisconnected
        body += piece.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise _too_large()
        if not piece.get("more_body", False):
            return bytes(body)
    raise _too_large()


def _content_length(request: Request) -> int | None:
    text = request.header(b"content-length")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise HTTPError(400, "The content-length is not a number.")
    # A longer number is too large in any case, and slow to parse.
    return int(text) if len(text) <= 18 else MAX_BODY_BYTES + 1


def _check_encoding(request: Request) -> None:
    if (request.header(b"content-encoding") or "identity").lower() != "identity":
        raise HTTPError(415, "The body must not be compressed.")


def _media_type(value: str) -> str:
    return value.partition(";")[0].strip().lower()


def _decode(body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        raise HTTPError(400, "The body is not UTF-8.") from None


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(members := dict(pairs)) < len(pairs):
        raise ValueError("a name is repeated")
    return members


def _reject_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _parse_finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError("the number is out of range")
    return number


def _check_values(value: Any) -> None:
    """Raise HTTPError for values that are nested too deeply, and for text that cannot be encoded."""
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        if any(isinstance(item, str) and not _is_unicode(item) for item in level):
            raise HTTPError(400, "The body contains text that is not Unicode.")
        inner = [item for item in level if isinstance(item, (dict, list))]
        level = [child for item in inner for child in ([*item, *item.values()] if isinstance(item, dict) else item)]
        if not level:
            return
    raise HTTPError(400, f"The body is nested deeper than {MAX_JSON_DEPTH} levels.")


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def _too_large() -> HTTPError:
    return HTTPError(413, f"The body must have at most {MAX_BODY_BYTES} bytes.")
