"""Everything that FlowFabric raises, in one tree.

    FlowFabricError
    ├── InvalidRequest   the call can never work; change it
    ├── Refused          the state of the execution forbids it now
    ├── NotFound         no such thing in this namespace
    ├── Conflict         it contradicts something that is already recorded
    └── Unavailable      the store could not answer; safe to repeat

Every error has a stable `code` (a word to program against), `fields` (the values that the message speaks of)
and a message that says what to do. Errors of the database drivers never leave the backends untranslated.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any


class FlowFabricError(Exception):
    """What all errors of FlowFabric have in common: a code, a message and the values behind it."""

    def __init__(self, code: str, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.fields = MappingProxyType(fields)

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.code, self.message, dict(self.fields))


class InvalidRequest(FlowFabricError):
    """The request can never work, whatever the state; nothing was written."""


class Refused(FlowFabricError):
    """The present state of the execution forbids the operation; nothing was written."""


class NotFound(FlowFabricError):
    """There is no such execution, lane or grant in this namespace."""


class Conflict(FlowFabricError):
    """The request contradicts what is recorded under the same id, key or name."""


class Unavailable(FlowFabricError):
    """The store could not answer. The operation may or may not have happened; it is safe to repeat."""


def _rebuild(kind: type[FlowFabricError], code: str, message: str, fields: dict[str, Any]) -> FlowFabricError:
    """Pickling support: keyword fields do not survive the default reduction of exceptions."""
    return kind(code, message, **fields)
