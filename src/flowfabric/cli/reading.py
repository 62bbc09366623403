"""Input that verbs share: JSON, tags, times, tokens and secrets. Whatever is wrong is an `InvalidRequest`."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from flowfabric.cli.documents import read_json
from flowfabric.cli.interrupting import interruptible
from flowfabric.core import limits
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.tokens import VERSION as TOKEN_VERSION

_STANDARD_INPUT = "-"
_MOST_BYTES = 4 * limits.PAYLOAD_BYTES


def json_bytes(text: str, what: str) -> bytes:
    """The JSON of an argument, of standard input (`-`) or of a file (`@path`), as it is stored."""
    raw: str | bytes = text
    if text == _STANDARD_INPUT:
        raw = _standard_input()
    elif text.startswith("@"):
        raw = _file(text[1:], what)
    try:
        value = read_json(raw)
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        why = "it is not UTF-8" if isinstance(error, UnicodeError) else str(error)
        message = f"{what} must be JSON, such as '{{\"order\": 7}}': {why}"
        raise InvalidRequest("invalid_json", message) from None


def tags_of(pairs: list[str]) -> dict[str, str]:
    """Tags that were given as key=value."""
    tags = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise InvalidRequest("invalid_tag_key", f"--tag must look like key=value, not {limits.shown(pair)}")
        tags[key] = value
    return tags


def time_of(text: str | None, name: str) -> datetime | None:
    """A time in ISO 8601, in UTC unless it says otherwise, or so long ago."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return _ago(text, name)
    return limits.moment(found if found.tzinfo else found.replace(tzinfo=UTC), name)


def token_of(text: str) -> str:
    """A token as it was given, at the end of a link, or on standard input."""
    found = _text(_standard_input(), "the token").strip() if text == _STANDARD_INPUT else text
    if "://" not in found:
        return found
    try:
        path = urlsplit(found).path
    except ValueError:
        path = ""
    return path.rstrip("/").rpartition("/")[2]


def is_token(text: str) -> bool:
    """True for what can only be a token, a link to it, or where to read it."""
    return text == _STANDARD_INPUT or "://" in text or text.startswith(f"{TOKEN_VERSION}.")


def secret_of(path: str) -> str:
    """The secret in a file or on standard input; what is wrong with it is said without showing it."""
    data = _standard_input() if path == _STANDARD_INPUT else _file(path, "--secret-file")
    return _text(data, "the secret").strip()


def _ago(text: str, name: str) -> datetime:
    try:
        return limits.moment(datetime.now(UTC) - limits.duration(text, name), name)
    except (InvalidRequest, OverflowError):
        message = f"{name} must be a time such as 2031-05-01T08:00Z, or 2h for two hours ago, not {limits.shown(text)}"
        raise InvalidRequest("invalid_time", message) from None


def _text(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("invalid_text", f"{what} is not UTF-8 text") from None


def _standard_input() -> bytes:
    if sys.stdin is None:
        raise InvalidRequest("invalid_file", "standard input is closed, so nothing can be read from it")
    with interruptible():
        data = sys.stdin.buffer.read(_MOST_BYTES + 1)
    return _bounded(data, "standard input")


def _file(path: str, what: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return _bounded(file.read(_MOST_BYTES + 1), what)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "its name cannot be used"
        raise InvalidRequest("invalid_file", f"{what}: {limits.shown(path)} cannot be read: {why}") from None


def _bounded(data: bytes, what: str) -> bytes:
    if len(data) > _MOST_BYTES:
        raise limits.too_large(what, len(data), _MOST_BYTES)
    return data
