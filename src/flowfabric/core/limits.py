"""The limits of the contract, and the checks that turn bad input into one clear error before anything is written."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from flowfabric.core.errors import InvalidRequest

PAYLOAD_BYTES = 1024 * 1024
STEPS_PER_EXECUTION = 10_000
NAME_CHARACTERS = 256
TAGS = 64
TAG_VALUE_BYTES = 1024
CAPABILITIES = 256
CAPABILITIES_BYTES = 4096
PRIORITY_MOST = 9000
BATCH = 1000
GRAPH_MEMBERS = 10_000
STANDING = 64
SIGNAL_BYTES = 256 * 1024
TEXT_BYTES = 16 * 1024
LEASE_TTL_LEAST = timedelta(seconds=1)
LEASE_TTL_MOST = timedelta(days=7)
DURATION_MOST = timedelta(days=3650)
COUNT_MOST = 1_000_000
LARGEST = 2**63 - 1
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(9000, 1, 1, tzinfo=UTC)

Duration = timedelta | float | str

_TAG_KEY = re.compile(r"[a-z][a-z0-9_]*\.[a-z0-9_][a-z0-9_.]*")
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)(ms|s|m|h|d)")
_FAR_S = 10**12
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_CAPABILITY = re.compile(r"[^\x00-\x20\x7f,]+")


def name(value: object, field: str) -> str:
    """A kind, lane, key or other name: 1 to 256 printable characters with no space at either end."""
    if not isinstance(value, str):
        raise _wrong_type(field, "text", value)
    if not 1 <= len(value) <= NAME_CHARACTERS:
        message = f"{field} must have 1 to {NAME_CHARACTERS} characters, it has {len(value)}"
        raise InvalidRequest("invalid_name", message, field=field, limit=NAME_CHARACTERS, length=len(value))
    # The only blank that counts as printable is the space.
    if not value.isprintable() or value[0] == " " or value[-1] == " ":
        message = f"{field} must be printable, with no space at either end; it is {shown(value)}"
        raise InvalidRequest("invalid_name", message, field=field)
    return value


def text(value: object, field: str, limit: int = TEXT_BYTES) -> str:
    """Free text such as a reason or a message: no NUL, no lone surrogate, at most `limit` bytes of UTF-8."""
    if not isinstance(value, str):
        raise _wrong_type(field, "text", value)
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(
            "invalid_text", f"{field} holds a lone surrogate; store valid Unicode", field=field
        ) from None
    if "\x00" in value:
        raise InvalidRequest("invalid_text", f"{field} holds a NUL character; remove it", field=field)
    if size > limit:
        raise too_large(field, size, limit)
    return value


def payload(value: object, field: str, limit: int = PAYLOAD_BYTES) -> bytes:
    """Opaque bytes of at most `limit` (1 MiB unless told)."""
    if not isinstance(value, bytes):
        raise _wrong_type(field, "bytes (encode it first)", value)
    if len(value) > limit:
        raise too_large(field, len(value), limit)
    return value


def too_large(field: str, size: int, limit: int) -> InvalidRequest:
    """The refusal of something over its limit of bytes."""
    message = f"{field} has {size} bytes, the limit is {limit}; store the data elsewhere and pass its address"
    return InvalidRequest("payload_too_large", message, field=field, size=size, limit=limit)


def tags(value: object) -> dict[str, str]:
    """Up to 64 tags: keys of the form `ns.name`, values of at most 1 KiB."""
    if not isinstance(value, Mapping):
        raise _wrong_type("tags", "a mapping of text to text", value)
    if len(value) > TAGS:
        raise InvalidRequest(
            "too_many_tags", f"{len(value)} tags given, the limit is {TAGS}", count=len(value), limit=TAGS
        )
    if not value:
        return {}
    return {
        tag_key(key): text(item, "tag value", TAG_VALUE_BYTES) for key, item in sorted(value.items(), key=_sortable)
    }


def tag_key(value: object) -> str:
    """A tag key of the form `ns.name`, lower case."""
    if not isinstance(value, str) or len(value) > NAME_CHARACTERS or not _TAG_KEY.fullmatch(value):
        message = (
            f"a tag key must look like 'team.owner', with {NAME_CHARACTERS} characters at most, not {shown(value)}"
        )
        raise InvalidRequest("invalid_tag_key", message, limit=NAME_CHARACTERS)
    return value


def capabilities(value: object, field: str) -> tuple[str, ...]:
    """A set of capability tokens, sorted and without repeats."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Collection):
        raise _wrong_type(field, "a collection of tokens", value)
    for token in value:
        if not isinstance(token, str) or not _CAPABILITY.fullmatch(token) or not token.isprintable():
            message = f"a token of {field} must be printable text without spaces and commas, not {shown(token)}"
            raise InvalidRequest("invalid_capabilities", message, field=field)
    unique = tuple(sorted(set(value)))
    size = len(",".join(unique).encode())
    if len(unique) > CAPABILITIES or size > CAPABILITIES_BYTES:
        most = f"{CAPABILITIES} tokens of {CAPABILITIES_BYTES} bytes together"
        message = f"{field} has {len(unique)} tokens of {size} bytes together, the limit is {most}"
        raise InvalidRequest("invalid_capabilities", message, field=field, limit=CAPABILITIES)
    return unique


def priority(value: object) -> int:
    """A priority, clamped to 0..9000; higher goes first."""
    return max(0, min(PRIORITY_MOST, _integer(value, "priority")))


def whole(value: object, field: str, least: int, most: int) -> int:
    """A whole number between two bounds."""
    number = _integer(value, field)
    if not least <= number <= most:
        message = (
            f"{field} must be between {least} and {most}, it is {number if abs(number) < 10**18 else 'far outside'}"
        )
        raise InvalidRequest("out_of_range", message, field=field, least=least, most=most)
    return number


def duration(value: object, field: str, least: timedelta = timedelta(0), most: timedelta = DURATION_MOST) -> timedelta:
    """A `timedelta`, a number of seconds, or text such as "30s", "15m", "1d"."""
    span = _as_timedelta(value, field)
    if not least <= span <= most:
        bounds = f"between {least.total_seconds():g} s and {most.total_seconds():g} s"
        message = f"{field} must be {bounds}, it is {span.total_seconds():g} s"
        raise InvalidRequest("out_of_range", message, field=field, least=least, most=most)
    return span


def moment(value: object, field: str) -> datetime:
    """A point in time with a time zone, between the years 1970 and 9000, as UTC."""
    if not isinstance(value, datetime):
        raise _wrong_type(field, "a datetime with a time zone", value)
    if value.tzinfo is None or value.utcoffset() is None:
        message = f"{field} has no time zone; use datetime.now(UTC) or another aware datetime"
        raise InvalidRequest("naive_datetime", message, field=field)
    try:
        utc = value.astimezone(UTC)
    except OverflowError:
        utc = LATEST + timedelta(days=1)
    if not EARLIEST <= utc <= LATEST:
        message = f"{field} must be between the years 1970 and 9000"
        raise InvalidRequest("time_out_of_range", message, field=field, least=EARLIEST, most=LATEST)
    return utc


def truth(value: object, field: str) -> bool:
    """True or False, and nothing that merely behaves like them."""
    if not isinstance(value, bool):
        raise _wrong_type(field, "True or False", value)
    return value


def batch(value: object, field: str) -> Sequence[Any]:
    """A list of at most 1,000 items."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence):
        raise _wrong_type(field, "a list", value)
    whole(len(value), f"number of {field}", 0, BATCH)
    return value


def names(value: object, field: str, most: int = BATCH) -> tuple[str, ...]:
    """One or more distinct names; a single text would be taken letter by letter, so it is refused."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise _wrong_type(field, "a list of names", value)
    unique = tuple(dict.fromkeys(name(item, field) for item in value))
    if not 1 <= len(unique) <= most:
        message = f"{field} must hold 1 to {most} names, it holds {len(unique)}"
        raise InvalidRequest("out_of_range", message, field=field, least=1, most=most)
    return unique


def shown(value: object) -> str:
    """A short, escaped view of bad input for a message; never more than 60 characters of it."""
    if isinstance(value, (str, bytes)):
        return ascii(value[:60])
    return type(value).__name__


def _as_timedelta(value: object, field: str) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        if match is None:
            message = f"{field} must look like '500ms', '30s', '15m', '2h' or '1d', not {shown(value)}"
            raise InvalidRequest("invalid_duration", message, field=field)
        value = float(match[1]) * _UNIT_S[match[2]]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong_type(field, "a timedelta, a number of seconds or text such as '30s'", value)
    if not -_FAR_S <= value <= _FAR_S:  # False for NaN as well.
        raise InvalidRequest(
            "invalid_duration", f"{field} must be a finite number of seconds within reach", field=field
        )
    return timedelta(seconds=value)


def _integer(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong_type(field, "a whole number", value)
    return value


def _sortable(item: tuple[Any, Any]) -> str:
    return str(item[0])


def _wrong_type(field: str, wanted: str, value: object) -> InvalidRequest:
    message = f"{field} must be {wanted}, not {type(value).__name__}"
    return InvalidRequest("invalid_type", message, field=field, got=type(value).__name__)
