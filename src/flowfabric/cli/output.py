"""Printing: sentences and tables for people, JSON lines for programs."""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, timedelta
from enum import Enum
from typing import Any, NoReturn

from flowfabric.cli.terminal import Screen, detect_screen, wrap_text

_AGE_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def print_result(arguments: argparse.Namespace, sentence: str, result: Any) -> None:
    """Print the sentence, or the result with --json."""
    print_lines([format_json(result)] if arguments.json else wrap_text(sentence, stdout_screen()))


def print_lines(lines: Iterable[str]) -> None:
    """Print lines that are already escaped."""
    for line in lines:
        print(line)


def print_hint(text: str) -> None:
    """Print a hint to standard error, so that it does not get into a pipe."""
    for line in wrap_text(text, detect_screen(sys.stderr)):
        print(line, file=sys.stderr)


def print_next(cursor: str | None) -> None:
    """Print how to get the next page, if there is one."""
    if cursor is not None:
        print_hint(f"More: --cursor {cursor}")


def stdout_screen() -> Screen:
    """Return the `Screen` of standard output, with its width and colours."""
    return detect_screen()


def format_json(value: Any) -> str:
    """Return the value as one line of ASCII JSON."""
    return json.dumps(to_json(value), allow_nan=False)


def to_json(value: Any) -> Any:
    """Convert a value to JSON types.

    Records become objects, times become ISO 8601 texts, and durations become seconds. Bytes become the JSON that they
    contain, or base64.
    """
    match value:
        case None | bool() | int() | str() if not isinstance(value, Enum):
            return value
        case Enum():
            return value.value
        case float():
            return value if value == value and abs(value) != float("inf") else str(value)
        case bytes():
            return _decode_bytes(value)
        case date():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Mapping():
            return {str(to_json(key)): to_json(item) for key, item in value.items()}
    if is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Iterable):
        return [to_json(item) for item in value]
    return str(value)


def read_json(data: bytes | str) -> Any:
    """Parse a strict JSON text and return its value. Raise ValueError if the text is not valid."""
    try:
        return json.loads(data, parse_constant=_reject_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _decode_bytes(data: bytes) -> Any:
    if not data:
        return None
    try:
        return read_json(data)
    except ValueError:
        return {"base64": base64.b64encode(data).decode()}


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def format_time(time: datetime | None) -> str:
    """Return a time in UTC to the second."""
    return "" if time is None else time.strftime("%Y-%m-%d %H:%M:%S")


def format_age(time: datetime | None, now: datetime) -> str:
    """Return the time between `time` and `now` in its largest unit: `3h`, or `in 3h` for a time in the future."""
    if time is None:
        return ""
    seconds = int(abs((now - time) / timedelta(seconds=1)))
    unit, name = next(((size, name) for size, name in _AGE_UNITS if seconds >= size), (1, "s"))
    return f"{'in ' if time > now and seconds else ''}{seconds // unit}{name}"


def format_duration(duration: timedelta | None) -> str:
    """Return a duration such as `35ms`, `2.1s` or `3m`."""
    if duration is None:
        return ""
    seconds = duration.total_seconds()
    if seconds < 1:
        return f"{round(1000 * seconds)}ms"
    return f"{seconds:.1f}s" if seconds < 60 else f"{seconds / 60:.1f}m"


def format_count(number: int, noun: str) -> str:
    """Return `1 lane`, `2 lanes`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
