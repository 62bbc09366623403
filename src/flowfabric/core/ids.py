"""Execution ids: UUIDv7 values that strictly increase within one minter, and end with a placement key of two bytes.

    | 48 bits: ms since 1970 | 7 | 12 bits: counter high | 2 | 30 bits: counter low | 16 random | 16 placement key |

Clients mint the ids, so a submit can be repeated after its reply was lost. All members of a flow share a placement key,
so a sharded store can locate an execution by its id.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable
from functools import lru_cache
from uuid import UUID

from flowfabric.core.errors import InvalidRequest

_TEXT = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PREFIX_DIGITS = re.compile(r"[0-9a-f]{4,32}")
_RESERVED = frozenset({UUID(int=0), UUID(int=2**128 - 1)})
_COUNTER_BITS = 42
_COUNTER_LIMIT = 1 << _COUNTER_BITS
# The id of a child is needed a few times in a short period, and then never again.
_MAX_DERIVED = 1024


class IdMinter:
    """Mints increasing ids from a clock (ms since 1970) and random bits. It is thread-safe."""

    def __init__(self, clock_ms: Callable[[], int], random_bits: Callable[[int], int]) -> None:
        self._clock_ms = clock_ms
        self._random_bits = random_bits
        self._lock = threading.Lock()
        self._last_ms = -1
        self._counter = 0

    def mint(self, placement_key: int | None = None) -> UUID:
        """Return an id that is greater than all earlier ids. Without a `placement_key`, use a random key."""
        bits = self._random_bits(32)
        key = bits & 0xFFFF if placement_key is None else placement_key
        with self._lock:
            ms, counter = self._advance()
        return _assemble(ms << 80, counter, bits >> 16, key)

    def _advance(self) -> tuple[int, int]:
        ms = self._clock_ms()
        if ms > self._last_ms:
            # The counter starts in the lower half, so that it cannot overflow within one millisecond.
            self._last_ms, self._counter = ms, self._random_bits(_COUNTER_BITS - 1)
        elif self._counter + 1 < _COUNTER_LIMIT:
            self._counter += 1
        else:
            self._last_ms, self._counter = self._last_ms + 1, 0
        return self._last_ms, self._counter


def placement_key(id_: UUID) -> int:
    """Return the last two bytes of an id, which all members of a flow share."""
    return id_.int & 0xFFFF


def parse_id(value: object, name: str = "id") -> UUID:
    """Return the UUID for a UUID or its text; raise `invalid_id` for other values."""
    if isinstance(value, UUID):
        return value
    if isinstance(value, str) and _TEXT.fullmatch(value):
        return UUID(value)
    # The message does not show the value, which may be a token passed by mistake.
    other = "other text" if isinstance(value, str) else type(value).__name__
    message = f"{name} must be a UUID or its 36-character text, not {other}"
    raise InvalidRequest("invalid_id", message, name=name)


def parse_id_prefix(value: object, name: str = "id") -> tuple[UUID, UUID]:
    """Return the lowest and the highest id whose text starts with `value`, which is at least 4 hexadecimal digits."""
    text = value.lower() if isinstance(value, str) else ""
    digits = text.replace("-", "")
    if _PREFIX_DIGITS.fullmatch(digits):
        first, last = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
        if text == digits or str(first).startswith(text):
            return first, last
    # The message does not show the value, which may be a token passed by mistake.
    message = f"{name} must be an id, or the start of one with at least 4 characters, such as 019a3f5c"
    raise InvalidRequest("invalid_id", message, name=name)


def parse_new_id(value: object) -> UUID:
    """Return the id for a new object. The lowest and the highest UUID are refused, because lists use them as bounds."""
    id_ = parse_id(value)
    if id_ in _RESERVED:
        message = "id must be neither the nil nor the max UUID; omit it to get a new id"
        raise InvalidRequest("invalid_id", message, name="id")
    return id_


def _assemble(time: int, counter: int, random16: int, key: int) -> UUID:
    high, low = counter >> 30, counter & 0x3FFFFFFF
    return UUID(int=time | (0x7 << 76) | (high << 64) | (0b10 << 62) | (low << 32) | (random16 << 16) | key)


@lru_cache(maxsize=_MAX_DERIVED)
def derive_id(origin: UUID, *parts: str) -> UUID:
    """Return an id that is derived from an origin and some words, with the origin's time and placement key.

    The same arguments always give the same id.
    """
    content_digest = hashlib.sha256("\0".join((str(origin), *parts)).encode()).digest()
    bits = int.from_bytes(content_digest[:8])
    time = origin.int & ~((1 << 80) - 1)
    counter = (bits >> 52) << 30 | (bits >> 16) & 0x3FFFFFFF
    return _assemble(time, counter, bits & 0xFFFF, placement_key(origin))
