"""Whether two values are alike where `==` says no for reasons that do not matter: NaN, classes without `__eq__`."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from decimal import Decimal
from typing import Any

_DEPTH = 50


def alike(one: Any, other: Any, depth: int = _DEPTH) -> bool:
    """True when both are of one type and equal, or hold alike values. Slow, and only asked when `==` said no."""
    if type(one) is not type(other) or depth == 0:
        return _equal(one, other)
    if isinstance(one, float | complex | Decimal) and one != one:
        return other != other if not isinstance(one, complex) else _alike_complex(one, other)
    parts, others = _parts(one), _parts(other)
    if parts is None or others is None:
        return _equal(one, other)
    return parts.keys() == others.keys() and all(alike(parts[key], others[key], depth - 1) for key in parts)


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:
        return False


def _alike_complex(one: complex, other: complex) -> bool:
    pairs = ((one.real, other.real), (one.imag, other.imag))
    return all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in pairs)


def _parts(value: Any) -> dict[Any, Any] | None:
    """What a container or an object is made of; None for anything that is one piece."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in fields(value)}
    if getattr(type(value), "__eq__", None) is object.__eq__ or hasattr(value, "__pydantic_fields_set__"):
        return getattr(value, "__dict__", None)
    return None
