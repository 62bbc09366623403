"""All exceptions that FlowFabric raises.

    FlowFabricError
    ├── InvalidRequest   the call can never work; change it
    ├── Refused          the state of the execution forbids it now
    ├── NotFound         the object does not exist in this namespace
    ├── Conflict         it contradicts a record under the same id, key or name
    └── Unavailable      the store did not respond; safe to repeat

Every error has a stable `code` to program against, `fields` with the values in the message, and a message with the
next action. Backends translate the errors of database drivers.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any


class FlowFabricError(Exception):
    """Base class of all errors: a code, a message and the values in the message."""

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
    """The request can never work, in any state. Nothing was written."""


class Refused(FlowFabricError):
    """The current state of the execution forbids the operation. Nothing was written."""


class NotFound(FlowFabricError):
    """The execution, lane, grant or other object does not exist in this namespace."""


class Conflict(FlowFabricError):
    """The request contradicts a record under the same id, key or name."""


class Unavailable(FlowFabricError):
    """The store did not respond. The operation may have happened; it is safe to repeat."""


_PERMANENT_CODES = frozenset({"storage_replaced"})


def is_permanent(error: BaseException) -> bool:
    """Return whether the store is lost for this process, so that its workers must stop instead of repeating calls."""
    return isinstance(error, Unavailable) and error.code in _PERMANENT_CODES


def _rebuild(kind: type[FlowFabricError], code: str, message: str, fields: dict[str, Any]) -> FlowFabricError:
    """Rebuild an error from its pickle. Without this function, unpickling would lose the keyword arguments."""
    return kind(code, message, **fields)
