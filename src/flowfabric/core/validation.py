"""Functions that validate input, and the limits that they apply.

Bad input raises one clear error before anything is written.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from flowfabric.core.errors import InvalidRequest

MAX_PAYLOAD_BYTES = 1024 * 1024
MAX_STEPS = 10_000
MAX_NAME_CHARACTERS = 256
MAX_TAGS = 64
MAX_TAG_VALUE_BYTES = 1024
MAX_CAPABILITIES = 256
MAX_CAPABILITIES_BYTES = 4096
MAX_PRIORITY = 9000
MAX_BATCH = 1000
MAX_GRAPH_MEMBERS = 10_000
MAX_DECLARED_SIGNALS = 64
MAX_SIGNAL_BYTES = 256 * 1024
MAX_TEXT_BYTES = 16 * 1024
MIN_LEASE_TTL = timedelta(seconds=1)
MAX_LEASE_TTL = timedelta(days=7)
MAX_DURATION = timedelta(days=3650)
MAX_COUNT = 1_000_000
MAX_INTEGER = 2**63 - 1
MIN_TIME = datetime(1970, 1, 1, tzinfo=UTC)
MAX_TIME = datetime(9000, 1, 1, tzinfo=UTC)

Duration = timedelta | float | str

_TAG_KEY = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_][a-z0-9_.]*)?")
_NUMBER = r"([0-9]{1,12}(?:\.[0-9]{1,6})?)"
# The parts of a duration, from the longest unit to the shortest. Each part may be missing.
_DURATION = re.compile("".join(f"(?:{_NUMBER}{unit})?" for unit in ("w", "d", "h", "m", "s", "ms")))
_MAX_SECONDS = 10**12
_UNITS_S = (604800.0, 86400.0, 3600.0, 60.0, 1.0, 0.001)
_CAPABILITY = re.compile(r"[^\x00-\x20\x7f,]+")


def name(value: object, field: str) -> str:
    """Return a kind, lane, key or other name: 1 to 256 printable characters without a space at either end."""
    if not isinstance(value, str):
        raise wrong_type(field, "text", value)
    if not 1 <= len(value) <= MAX_NAME_CHARACTERS:
        message = f"{field} must have 1 to {MAX_NAME_CHARACTERS} characters; it has {len(value)}"
        raise InvalidRequest("invalid_name", message, field=field, limit=MAX_NAME_CHARACTERS, length=len(value))
    # The space is the only white space that isprintable() accepts.
    if not value.isprintable() or value[0] == " " or value[-1] == " ":
        message = f"{field} must be printable, with no space at either end; it is {preview(value)}"
        raise InvalidRequest("invalid_name", message, field=field)
    return value


def text(value: object, field: str, limit: int = MAX_TEXT_BYTES) -> str:
    """Return free text such as a reason: no NUL, no lone surrogate, at most `limit` bytes of UTF-8."""
    if not isinstance(value, str):
        raise wrong_type(field, "text", value)
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        message = f"{field} contains a lone surrogate; pass valid Unicode"
        raise InvalidRequest("invalid_text", message, field=field) from None
    if "\x00" in value:
        raise InvalidRequest("invalid_text", f"{field} contains a NUL character; remove it", field=field)
    if size > limit:
        raise too_large(field, size, limit)
    return value


def payload(value: object, field: str, limit: int = MAX_PAYLOAD_BYTES) -> bytes:
    """Return opaque bytes, at most `limit` of them."""
    if not isinstance(value, bytes):
        raise wrong_type(field, "bytes (encode it first)", value)
    if len(value) > limit:
        raise too_large(field, len(value), limit)
    return value


def too_large(field: str, size: int, limit: int) -> InvalidRequest:
    """Return the error for a value that has too many bytes."""
    message = f"{field} has {size} bytes, the limit is {limit}; store the data elsewhere and pass its address"
    return InvalidRequest("payload_too_large", message, field=field, size=size, limit=limit)


def tags(value: object) -> dict[str, str]:
    """Return at most 64 tags, whose keys are words or of the form `ns.name`, with values of at most 1 KiB."""
    if not isinstance(value, Mapping):
        raise wrong_type("tags", "a mapping of text to text", value)
    if len(value) > MAX_TAGS:
        message = f"there are {len(value)} tags, the limit is {MAX_TAGS}; remove some"
        raise InvalidRequest("too_many_tags", message, count=len(value), limit=MAX_TAGS)
    checked = {tag_key(key): text(item, "tag value", MAX_TAG_VALUE_BYTES) for key, item in value.items()}
    return dict(sorted(checked.items()))


def tag_key(value: object) -> str:
    """Return a lower-case tag key: a word, or text of the form `ns.name`."""
    if not isinstance(value, str) or len(value) > MAX_NAME_CHARACTERS or not _TAG_KEY.fullmatch(value):
        form = f"'customer' or 'team.owner', with at most {MAX_NAME_CHARACTERS} characters"
        message = f"a tag key must look like {form}; it is {preview(value)}"
        raise InvalidRequest("invalid_tag_key", message, limit=MAX_NAME_CHARACTERS)
    return value


def capabilities(value: object, field: str) -> tuple[str, ...]:
    """Return capability tokens, sorted and without duplicates."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Collection):
        raise wrong_type(field, "a collection of capabilities", value)
    for token in value:
        if not isinstance(token, str) or not _CAPABILITY.fullmatch(token) or not token.isprintable():
            message = f"a capability in {field} must be printable text without spaces and commas, not {preview(token)}"
            raise InvalidRequest("invalid_capabilities", message, field=field)
    unique = tuple(sorted(set(value)))
    size = len(",".join(unique).encode())
    if len(unique) > MAX_CAPABILITIES or size > MAX_CAPABILITIES_BYTES:
        limit = f"{MAX_CAPABILITIES} capabilities of {MAX_CAPABILITIES_BYTES} bytes"
        message = f"{field} has {len(unique)} capabilities of {size} bytes, the limit is {limit}; remove some"
        raise InvalidRequest("invalid_capabilities", message, field=field, limit=MAX_CAPABILITIES)
    return unique


def priority(value: object) -> int:
    """Return a priority clamped to 0..9000. Higher priorities go first."""
    return max(0, min(MAX_PRIORITY, _integer(value, "priority")))


def integer(value: object, field: str, minimum: int, maximum: int) -> int:
    """Return an integer between two bounds."""
    number = _integer(value, field)
    if not minimum <= number <= maximum:
        shown = number if abs(number) < 10**18 else "far outside"
        message = f"{field} must be between {minimum} and {maximum}; it is {shown}"
        raise InvalidRequest("out_of_range", message, field=field, minimum=minimum, maximum=maximum)
    return number


def duration(
    value: object, field: str, minimum: timedelta = timedelta(0), maximum: timedelta = MAX_DURATION
) -> timedelta:
    """Return a duration; accepts a `timedelta`, a number of seconds, or text such as "30s", "1h30m", "1w"."""
    span = _as_timedelta(value, field)
    if not minimum <= span <= maximum:
        bounds = f"between {minimum.total_seconds():g} s and {maximum.total_seconds():g} s"
        message = f"{field} must be {bounds}; it is {span.total_seconds():g} s"
        raise InvalidRequest("out_of_range", message, field=field, minimum=minimum, maximum=maximum)
    return span


def timestamp(value: object, field: str) -> datetime:
    """Return an aware datetime between the years 1970 and 9000, converted to UTC."""
    if not isinstance(value, datetime):
        raise wrong_type(field, "a datetime with a time zone", value)
    if value.tzinfo is None or value.utcoffset() is None:
        message = f"{field} has no time zone; use datetime.now(UTC) or another aware datetime"
        raise InvalidRequest("naive_datetime", message, field=field)
    try:
        utc = value.astimezone(UTC)
    except OverflowError:
        utc = MAX_TIME + timedelta(days=1)
    if not MIN_TIME <= utc <= MAX_TIME:
        message = f"{field} must be between the years 1970 and 9000"
        raise InvalidRequest("time_out_of_range", message, field=field, minimum=MIN_TIME, maximum=MAX_TIME)
    return utc


def boolean(value: object, field: str) -> bool:
    """Return True or False; no other type is accepted."""
    if not isinstance(value, bool):
        raise wrong_type(field, "True or False", value)
    return value


def batch(value: object, field: str) -> Sequence[Any]:
    """Return a list of at most 1,000 items."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence):
        raise wrong_type(field, "a list", value)
    integer(len(value), f"number of {field}", 0, MAX_BATCH)
    return value


def names(value: object, field: str, maximum: int = MAX_BATCH) -> tuple[str, ...]:
    """Return one or more distinct names. A single string is refused, since it would be read letter by letter."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise wrong_type(field, "a list of names", value)
    unique = tuple(dict.fromkeys(name(item, field) for item in value))
    if not 1 <= len(unique) <= maximum:
        message = f"{field} must have 1 to {maximum} names; it has {len(unique)}"
        raise InvalidRequest("out_of_range", message, field=field, minimum=1, maximum=maximum)
    return unique


def preview(value: object) -> str:
    """Return a short, escaped form of bad input for a message: at most 60 characters."""
    if isinstance(value, (str, bytes)):
        return ascii(value[:60])
    return type(value).__name__


def escape(text: str) -> str:
    """Escape characters that are not printable, because they could control the terminal."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )


def list_some(names: Sequence[str], limit: int = 20) -> str:
    """Return the first names for a message, and the number of the others."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def parse_choice(kind: type[StrEnum], value: Any, field: str, *, code: str = "invalid_choice", **fields: Any) -> Any:
    """Return the member of an enumeration for a member or its value."""
    try:
        return kind(value)
    except ValueError:
        message = f"{field} must be one of {', '.join(kind)}, not {preview(value)}"
        raise InvalidRequest(code, message, field=field, **fields) from None


def wrong_type(what: str, expected: str, value: object, **fields: Any) -> InvalidRequest:
    """Return the error for a value of the wrong type."""
    got = type(value).__name__
    message = f"{what} must be {expected}, not {got}"
    return InvalidRequest("invalid_type", message, **{"field": what, "got": got, **fields})


def unknown_field(what: str, key: object, known: Sequence[str], **fields: Any) -> InvalidRequest:
    """Return the error for a field that a JSON object cannot have; it suggests the nearest name."""
    nearest = difflib.get_close_matches(str(key)[:60], known, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"the fields are {', '.join(known)}"
    message = f"{what} has no field {preview(key)}; {hint}"
    return InvalidRequest("unknown_field", message, field=str(key)[:60], **fields)


def _as_timedelta(value: object, field: str) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        if not value or match is None:
            message = f"{field} must look like '500ms', '30s', '1h30m', '1d' or '1w', not {preview(value)}"
            raise InvalidRequest("invalid_duration", message, field=field)
        value = sum(float(number) * unit_s for number, unit_s in zip(match.groups("0"), _UNITS_S, strict=True))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong_type(field, "a timedelta, a number of seconds or text such as '30s'", value)
    if not -_MAX_SECONDS <= value <= _MAX_SECONDS:  # This comparison is also False for NaN.
        message = f"{field} must be a finite number of seconds of at most {_MAX_SECONDS}"
        raise InvalidRequest("invalid_duration", message, field=field)
    return timedelta(seconds=value)


def _integer(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(field, "an integer", value)
    return value
