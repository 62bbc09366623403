"""Reads requests as if every one were hostile: sizes, times and shapes are bounded before anything is understood.

Nothing in here knows whether a token is good, so nothing that is refused here tells anything about one.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from flowfabric.asgi.answers import Refusal
from flowfabric.asgi.pages import COMMENT_CHARACTERS
from flowfabric.core import limits
from flowfabric.core.errors import InvalidRequest

Receive = Callable[[], Awaitable[Any]]

BODY_BYTES = 256 * 1024
JSON_DEPTH = 64
_HEADERS, _HEADER_BYTES, _QUERY_BYTES, _FIELDS = 100, 16 * 1024, 4096, 8
# A server passes a body on in pieces, of a packet or more; nobody honest needs more of them than this.
_PIECES = 16 * 1024
_FORM, _JSON = "application/x-www-form-urlencoded", "application/json"


class Gone(Exception):
    """Whoever asked has hung up: nothing can be answered."""


@dataclass(frozen=True, slots=True)
class Request:
    """Method, path below the mount, and headers by lower-case name. The path holds the token and is never shown."""

    method: str
    path: str = field(repr=False)
    headers: Mapping[bytes, list[bytes]] = field(repr=False)

    def header(self, name: bytes) -> str | None:
        """The value of a header that may be there once."""
        values = self.headers.get(name, [])
        if len(values) > 1:
            raise Refusal(400, f"The header {name.decode()} is there more than once.")
        return values[0].decode("latin-1").strip() if values else None

    @property
    def sends_json(self) -> bool:
        """True for a program that speaks JSON."""
        values = self.headers.get(b"content-type", [b""])
        return _media_type(values[0].decode("latin-1")) == _JSON


def request_of(scope: Mapping[str, Any]) -> Request:
    """What a connection asks for. The path of a mounted application begins with the mount's own, which is taken off."""
    headers: dict[bytes, list[bytes]] = {}
    for name, value in scope.get("headers", ()):
        headers.setdefault(bytes(name).lower(), []).append(bytes(value))
    path, root = scope["path"], scope.get("root_path", "").rstrip("/")
    below = path[len(root) :] if root and path.startswith(f"{root}/") else path
    return Request(scope["method"], below, headers)


def check_size(scope: Mapping[str, Any]) -> None:
    """Refuses more headers or a longer query than any honest request has."""
    headers = list(scope.get("headers", ()))
    if len(headers) > _HEADERS or sum(len(name) + len(value) for name, value in headers) > _HEADER_BYTES:
        raise Refusal(431, "The headers are too large.")
    if len(scope.get("query_string", b"")) > _QUERY_BYTES:
        raise Refusal(414, "The address is too long.")


async def read_body(request: Request, receive: Receive, timeout_s: float) -> bytes:
    """The whole body, within its limit of bytes and time, and as long as it was said to be."""
    said = _said_length(request)
    if said is not None and said > BODY_BYTES:
        raise _too_large()
    try:
        async with asyncio.timeout(timeout_s):
            body = await _pieces(receive)
    except TimeoutError:
        raise Refusal(408, "The body did not come in time.") from None
    if said is not None and said != len(body):
        raise Refusal(400, "The body is not as long as its content-length says.")
    return body


def read_form(request: Request, body: bytes) -> dict[str, str]:
    """The fields of a form, or of a JSON object of texts."""
    kind = _media_type(request.header(b"content-type") or "")
    _check_encoding(request)
    if kind == _JSON:
        value = read_json(body)
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise Refusal(400, "The body must be a JSON object of texts.")
        return value
    if kind != _FORM:
        raise Refusal(415, f"The body must be {_FORM} or {_JSON}.")
    try:
        pairs = parse_qsl(
            _unicode(body), keep_blank_values=True, errors="strict", max_num_fields=_FIELDS, separator="&"
        )
    except ValueError:
        raise Refusal(400, "The form cannot be read.") from None
    if len({name for name, _ in pairs}) < len(pairs):
        raise Refusal(400, "A field of the form is there more than once.")
    return dict(pairs)


def read_payload(request: Request, body: bytes) -> bytes:
    """A body that is one JSON value, as it came."""
    kind = _media_type(request.header(b"content-type") or "")
    if kind != _JSON and not (kind.startswith("application/") and kind.endswith("+json")):
        raise Refusal(415, f"The body must be {_JSON}.")
    _check_encoding(request)
    read_json(body)
    return body


def read_json(body: bytes) -> Any:
    """The value of a JSON text that every reader would understand alike: UTF-8, finite, not too deep, no name twice."""
    text = _unicode(body)
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError):
        raise Refusal(400, "The body is not JSON that can be taken.") from None
    _check_values(value)
    return value


def read_comment(fields: Mapping[str, str]) -> str:
    """The comment, or the reason, of a decision."""
    found = (fields.get("comment") or fields.get("reason") or "").replace("\r\n", "\n").strip()
    if len(found) > COMMENT_CHARACTERS:
        raise Refusal(400, f"The comment must have at most {COMMENT_CHARACTERS} characters.")
    try:
        return limits.text(found, "comment")
    except InvalidRequest:
        raise Refusal(400, "The comment holds characters that cannot be stored.") from None


def read_key(request: Request) -> str | None:
    """The sender's own name for this request."""
    value = request.header(b"idempotency-key")
    try:
        return None if value is None else limits.name(value, "key")
    except InvalidRequest:
        raise Refusal(400, "Idempotency-Key must be 1 to 256 printable characters.") from None


async def _pieces(receive: Receive) -> bytes:
    body = bytearray()
    for _ in range(_PIECES):
        piece = await receive()
        if piece["type"] != "http.request":
            raise Gone
        body += piece.get("body", b"")
        if len(body) > BODY_BYTES:
            raise _too_large()
        if not piece.get("more_body", False):
            return bytes(body)
    raise _too_large()


def _said_length(request: Request) -> int | None:
    said = request.header(b"content-length")
    if said is None:
        return None
    if not (said.isascii() and said.isdigit()):
        raise Refusal(400, "The content-length is not a number.")
    # More digits than that are too large whatever they are, and slow to read.
    return int(said) if len(said) <= 18 else BODY_BYTES + 1


def _check_encoding(request: Request) -> None:
    if (request.header(b"content-encoding") or "identity").lower() != "identity":
        raise Refusal(415, "The body must not be compressed.")


def _media_type(value: str) -> str:
    return value.partition(";")[0].strip().lower()


def _unicode(body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        raise Refusal(400, "The body is not UTF-8.") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a name is there twice")
    return found


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError("the number is out of range")
    return number


def _check_values(value: Any) -> None:
    """Refuses values that are nested too deep, and text that cannot be written down again."""
    level = [value]
    for _ in range(JSON_DEPTH):
        if any(isinstance(item, str) and not _is_unicode(item) for item in level):
            raise Refusal(400, "The body holds text that is not Unicode.")
        inner = [item for item in level if isinstance(item, (dict, list))]
        level = [each for item in inner for each in ([*item, *item.values()] if isinstance(item, dict) else item)]
        if not level:
            return
    raise Refusal(400, f"The body is nested deeper than {JSON_DEPTH} levels.")


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def _too_large() -> Refusal:
    return Refusal(413, f"The body must have at most {BODY_BYTES} bytes.")
