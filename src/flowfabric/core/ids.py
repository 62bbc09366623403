"""Execution ids: UUIDv7, strictly increasing within one minter, with a placement key in the last two bytes.

    | 48 bits: ms since 1970 | 7 | 12 bits: counter high | 2 | 30 bits: counter low | 16 random | 16 placement key |

The ids are minted by the client, so that a submit whose reply was lost can be repeated. The placement key is equal
for all members of a flow; a sharded store can find an execution by its id alone.
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
_NOT_FOR_USE = frozenset({UUID(int=0), UUID(int=2**128 - 1)})
_COUNTER_BITS = 42
_COUNTER_LIMIT = 1 << _COUNTER_BITS


class IdMinter:
    """Mints ids in increasing order from a clock (ms since 1970) and random bits; threads may share it."""

    def __init__(self, clock_ms: Callable[[], int], random_bits: Callable[[int], int]) -> None:
        self._clock_ms = clock_ms
        self._random_bits = random_bits
        self._lock = threading.Lock()
        self._last_ms = -1
        self._counter = 0

    def mint(self, placement_key: int | None = None) -> UUID:
        """A new id, greater than every id this minter made before; the placement key is random unless given."""
        drawn = self._random_bits(32)
        key = drawn & 0xFFFF if placement_key is None else placement_key
        with self._lock:
            ms, counter = self._advance()
        return _assemble(ms, counter, drawn >> 16, key)

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
    """The last two bytes of an id: where it is placed, equal for all members of a flow."""
    return id_.int & 0xFFFF


def parse_id(value: object, name: str = "id") -> UUID:
    """The UUID behind a UUID or its text; raises `invalid_id` for anything else."""
    if isinstance(value, UUID):
        return value
    if isinstance(value, str) and _TEXT.fullmatch(value):
        return UUID(value)
    # What was given is not shown: it may be a token in the wrong place.
    message = f"{name} must be a UUID or its 36-character text, not {_kind(value)}"
    raise InvalidRequest("invalid_id", message, name=name)


def _kind(value: object) -> str:
    return "another text" if isinstance(value, str) else type(value).__name__


def parse_new_id(value: object) -> UUID:
    """An id for something new; the nil and the max UUID are not for use, since lists begin and end with them."""
    found = parse_id(value)
    if found in _NOT_FOR_USE:
        raise InvalidRequest(
            "invalid_id", "id must be neither the nil nor the max UUID; leave it out to have one made", name="id"
        )
    return found


def _assemble(ms: int, counter: int, random16: int, key: int) -> UUID:
    high, low = counter >> 30, counter & 0x3FFFFFFF
    return UUID(int=(ms << 80) | (0x7 << 76) | (high << 64) | (0b10 << 62) | (low << 32) | (random16 << 16) | key)


@lru_cache(maxsize=1 << 14)
def derived_id(origin: UUID, *parts: str) -> UUID:
    """The id of something that belongs to another thing and is told apart by these words: always the same one, of the
    same time and with the same placement key."""
    named = hashlib.sha256("\0".join((str(origin), *parts)).encode()).digest()
    drawn = int.from_bytes(named[:8])
    high, low, random16 = drawn >> 52, (drawn >> 16) & 0x3FFFFFFF, drawn & 0xFFFF
    time = origin.int & ~((1 << 80) - 1)
    return UUID(
        int=time | (0x7 << 76) | (high << 64) | (0b10 << 62) | (low << 32) | (random16 << 16) | placement_key(origin)
    )
