"""Errors of asyncpg, translated to ours."""

from __future__ import annotations

import asyncpg

from flowfabric.core.errors import FlowFabricError, InvalidRequest, Unavailable

_ERRORS = asyncpg.exceptions
# An InternalClientError is what the driver says when the connection ended between two of its own steps.
_LOST = (
    _ERRORS.PostgresConnectionError, _ERRORS.ConnectionDoesNotExistError, _ERRORS.InterfaceError,
    _ERRORS.CannotConnectNowError, _ERRORS.AdminShutdownError, _ERRORS.CrashShutdownError,
    _ERRORS.InternalClientError, OSError,
)  # fmt: skip
_DENIED = (
    _ERRORS.InvalidAuthorizationSpecificationError, _ERRORS.InvalidCatalogNameError, _ERRORS.InsufficientPrivilegeError,
)  # fmt: skip
# What is wrong with one row, and not with the store as a whole: a constraint or somebody's trigger forbids it, or what
# lies on the disk is damaged in that place.
_OF_A_ROW = (
    _ERRORS.IntegrityConstraintViolationError, _ERRORS.ProgramLimitExceededError, _ERRORS.PLPGSQLError,
    _ERRORS.DataCorruptedError, _ERRORS.IndexCorruptedError,
)  # fmt: skip
_MEANING: tuple[tuple[tuple[type[BaseException], ...], str, str], ...] = (
    ((_ERRORS.QueryCanceledError,), "statement_timeout", "a statement took longer than the statement timeout"),
    ((TimeoutError,), "statement_timeout", "the database did not answer in time; repeat the call"),
    ((_ERRORS.LockNotAvailableError,), "storage_busy", "a row stayed locked for too long; repeat the call"),
    (
        (_ERRORS.TooManyConnectionsError,),
        "too_many_connections",
        "the server has no connection left; use fewer, or a pooler",
    ),
    ((_ERRORS.DiskFullError,), "storage_full", "the server's disk is full; free some space and repeat the call"),
    (_DENIED, "access_denied", "the server refused the user, the database or the schema; check the URL and the grants"),
    (
        _LOST,
        "connection_lost",
        "the connection to the database was lost; whether the call took effect is not known, repeat it",
    ),
)


def is_conflict(error: BaseException) -> bool:
    """True for a serialization failure or a deadlock: nothing happened, and the transaction can simply run again."""
    return isinstance(error, (_ERRORS.SerializationError, _ERRORS.DeadlockDetectedError))


def translated(error: BaseException) -> BaseException:
    """Our error for one of the driver's; anything else as it is."""
    if isinstance(error, FlowFabricError):
        return error
    for kinds, code, advice in _MEANING:
        if isinstance(error, kinds):
            return _caused(Unavailable(code, f"{advice} ({_short(error)})"), error)
    if isinstance(error, _ERRORS.DataError):
        return _caused(
            InvalidRequest("invalid_request", f"the database cannot hold a value of the call ({_short(error)})"), error
        )
    if isinstance(error, _OF_A_ROW):
        return _caused(Unavailable("storage_error", f"the database refused a row ({_short(error)})"), error)
    if isinstance(error, _ERRORS.PostgresError):
        return _caused(Unavailable("storage_refused", f"the database refused a statement ({_short(error)})"), error)
    return error


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def _caused(ours: FlowFabricError, error: BaseException) -> FlowFabricError:
    ours.__cause__ = error
    return ours
