"""Functions that read the input of commands: confirmations, principals, JSON, tags, times, tokens and secrets.

Invalid input raises `InvalidRequest`.
"""

from __future__ import annotations

import argparse
import getpass
import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flowfabric.cli.output import read_json
from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest, Refused
from flowfabric.core.tokens.token import VERSION as TOKEN_VERSION
from flowfabric.core.validation import escape

_PAGE_SIZE = 50
_YES = ("y", "yes")
_STANDARD_INPUT = "-"
_MAX_INPUT_BYTES = 4 * validation.MAX_PAYLOAD_BYTES


@contextmanager
def allow_interrupt() -> Iterator[None]:
    """Let Ctrl-C interrupt a blocking read inside the `with` block.

    Without this, Ctrl-C takes effect only after the read.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)


def audit_args(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the principal and the reason as keyword arguments for a call of the engine."""
    return {"principal": principal(arguments), "reason": arguments.reason}


def page_args(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return --limit and --cursor as keyword arguments for a list of the engine.

    A command without a subcommand, such as `flowfabric lanes`, has neither option.
    """
    return {"limit": getattr(arguments, "limit", _PAGE_SIZE), "cursor": getattr(arguments, "cursor", None)}


def filter_args(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the filters of a command as keyword arguments for a list of executions."""
    return {
        "state": arguments.state or None,
        "lane": arguments.lane,
        "kind": arguments.kind,
        "tags": parse_tags(arguments.tag) or None,
        "created_from": parse_time(arguments.since, "--since"),
        "created_until": parse_time(arguments.until, "--until"),
    }


def principal(arguments: argparse.Namespace) -> str:
    """Return the principal of --principal, or else the name of the system user."""
    if arguments.principal is not None:
        return str(arguments.principal)
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):
        user = ""
    return user if user.isprintable() and user.strip() == user and 0 < len(user) <= 256 else "unknown"


def require_confirmation(arguments: argparse.Namespace) -> None:
    """Raise `Refused` if --yes is missing and there is no terminal to ask on."""
    if not arguments.yes and not _has_terminal():
        message = "this command needs confirmation, but there is no terminal to ask on; add --yes to confirm"
        raise Refused("not_confirmed", message)


def confirm(arguments: argparse.Namespace, question: str) -> None:
    """Ask the question on the terminal, unless --yes is given. Raise `Refused` if the user declines."""
    require_confirmation(arguments)
    if arguments.yes:
        return
    with allow_interrupt():
        print(f"{escape(question)} [y/N] ", end="", file=sys.stderr, flush=True)
        reply = sys.stdin.readline()
    if reply.strip().lower() not in _YES:
        raise Refused("not_confirmed", "nothing was done")


def _has_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def read_json_argument(text: str, what: str) -> bytes:
    """Return the JSON of an argument, of standard input (`-`) or of a file (`@path`), in compact form."""
    raw: str | bytes = text
    if text == _STANDARD_INPUT:
        raw = _read_standard_input()
    elif text.startswith("@"):
        raw = _read_file(text[1:], what)
    try:
        value = read_json(raw)
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        why = "it is not UTF-8" if isinstance(error, UnicodeError) else str(error)
        message = f"{what} must be JSON, such as '{{\"order\": 7}}': {why}"
        raise InvalidRequest("invalid_json", message) from None


def parse_tags(pairs: list[str]) -> dict[str, str]:
    """Parse `key=value` texts, and return them as tags."""
    tags = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise InvalidRequest("invalid_tag_key", f"--tag must look like key=value, not {validation.preview(pair)}")
        tags[key] = value
    return tags


def parse_time(text: str | None, name: str) -> datetime | None:
    """Parse an ISO 8601 time, which is in UTC by default, or an age such as `2h`, and return the time."""
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return _parse_age(text, name)
    return validation.timestamp(time if time.tzinfo else time.replace(tzinfo=UTC), name)


def read_token(text: str) -> str:
    """Return the token from the argument itself, from the end of a link, or from standard input."""
    token = _decode_text(_read_standard_input(), "the token").strip() if text == _STANDARD_INPUT else text
    if "://" not in token:
        return token
    try:
        path = urlsplit(token).path
    except ValueError:
        path = ""
    return path.rstrip("/").rpartition("/")[2]


def is_token(text: str) -> bool:
    """Return True for a token, a link, or `-`, which reads one of them from standard input."""
    return text == _STANDARD_INPUT or "://" in text or text.startswith(f"{TOKEN_VERSION}.")


def read_secret(path: str) -> str:
    """Return the secret from a file or standard input. Error messages never contain the secret."""
    data = _read_standard_input() if path == _STANDARD_INPUT else _read_file(path, "--secret-file")
    return _decode_text(data, "the secret").strip()


def _parse_age(text: str, name: str) -> datetime:
    try:
        return validation.timestamp(datetime.now(UTC) - validation.duration(text, name), name)
    except (InvalidRequest, OverflowError):
        message = (
            f"{name} must be a time such as 2031-05-01T08:00Z, or 2h for two hours ago, not {validation.preview(text)}"
        )
        raise InvalidRequest("invalid_time", message) from None


def _decode_text(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("invalid_text", f"{what} is not UTF-8 text") from None


def _read_standard_input() -> bytes:
    if sys.stdin is None:
        raise InvalidRequest("invalid_file", "standard input is closed")
    with allow_interrupt():
        data = sys.stdin.buffer.read(_MAX_INPUT_BYTES + 1)
    return _check_size(data, "standard input")


def _read_file(path: str, what: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return _check_size(file.read(_MAX_INPUT_BYTES + 1), what)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "the name is invalid"
        raise InvalidRequest("invalid_file", f"{what}: {validation.preview(path)} cannot be read: {why}") from None


def _check_size(data: bytes, what: str) -> bytes:
    if len(data) > _MAX_INPUT_BYTES:
        raise validation.too_large(what, len(data), _MAX_INPUT_BYTES)
    return data
