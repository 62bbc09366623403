"""Records as JSON documents, one a line, for programs."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, timedelta
from enum import Enum
from typing import Any, NoReturn


def document(value: Any) -> str:
    """One line of JSON; what it holds of other people's text is escaped."""
    return json.dumps(plain(value), allow_nan=False)


def plain(value: Any) -> Any:
    """What JSON can say of a value: records are objects, times are ISO 8601, durations are seconds, and bytes are the
    JSON that they hold, or base64."""
    match value:
        case None | bool() | int() | str() if not isinstance(value, Enum):
            return value
        case Enum():
            return value.value
        case float():
            return value if value == value and abs(value) != float("inf") else str(value)
        case bytes():
            return _held(value)
        case date():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Mapping():
            return {str(plain(key)): plain(item) for key, item in value.items()}
    if is_dataclass(value):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Iterable):
        return [plain(item) for item in value]
    return str(value)


def read_json(data: bytes | str) -> Any:
    """The value of a JSON text in the strict sense; raises ValueError for any other."""
    try:
        return json.loads(data, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _held(data: bytes) -> Any:
    if not data:
        return None
    try:
        return read_json(data)
    except ValueError:
        return {"base64": base64.b64encode(data).decode()}


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")
