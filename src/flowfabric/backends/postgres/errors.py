"""Translation of asyncpg errors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from flowfabric.core.errors import FlowFabricError, InvalidRequest, Unavailable

_ERRORS = asyncpg.exceptions
# The driver raises InternalClientError if the connection ended between two internal steps.
_LOST = (
    _ERRORS.PostgresConnectionError, _ERRORS.ConnectionDoesNotExistError, _ERRORS.InterfaceError,
    _ERRORS.CannotConnectNowError, _ERRORS.AdminShutdownError, _ERRORS.CrashShutdownError,
    _ERRORS.IdleSessionTimeoutError, _ERRORS.IdleInTransactionSessionTimeoutError, _ERRORS.InternalClientError, OSError,
)  # fmt: skip
_DENIED = (
    _ERRORS.InvalidAuthorizationSpecificationError, _ERRORS.InvalidCatalogNameError, _ERRORS.InsufficientPrivilegeError,
)  # fmt: skip
# Errors about one row, not about the whole store: a constraint or trigger rejects the row, or its data is damaged.
_ROW_ERRORS = (
    _ERRORS.IntegrityConstraintViolationError, _ERRORS.ProgramLimitExceededError, _ERRORS.PLPGSQLError,
    _ERRORS.DataCorruptedError, _ERRORS.IndexCorruptedError,
)  # fmt: skip
# The server restarts. A refused connection is not in this list, because it usually means a wrong address.
_RESTARTING = (_ERRORS.CannotConnectNowError, _ERRORS.AdminShutdownError, _ERRORS.CrashShutdownError)


class PoolClosed(asyncpg.InterfaceError):
    """The pool was closed."""


class OtherEventLoop(asyncpg.InterfaceError):
    """The pool belongs to another event loop."""


class ServerUnreachable(OSError):
    """No connection could be opened. The text contains the address of the server and the reason."""


_MEANING: tuple[tuple[tuple[type[BaseException], ...], str, str], ...] = (
    ((PoolClosed,), "store_closed", "the engine was closed; open it again with connect()"),
    ((OtherEventLoop,), "other_event_loop", "the engine belongs to another event loop; open one engine in each loop"),
    ((_ERRORS.QueryCanceledError,), "statement_timeout", "a statement took longer than the statement timeout"),
    ((TimeoutError,), "statement_timeout", "the database did not respond in time; repeat the call"),
    ((_ERRORS.LockNotAvailableError,), "storage_busy", "a row stayed locked for too long; repeat the call"),
    (
        (_ERRORS.TooManyConnectionsError,),
        "too_many_connections",
        "the server has no free connection; use a smaller pool, or a pooler",
    ),
    (
        (_ERRORS.ReadOnlySQLTransactionError, _ERRORS.ObjectNotInPrerequisiteStateError),
        "server_read_only",
        "the server is a standby or is being promoted; connect to the primary, or repeat the call",
    ),
    ((_ERRORS.DiskFullError,), "storage_full", "the server's disk is full; free some space and repeat the call"),
    (_DENIED, "access_denied", "the server denied access to the database or the schema; check the URL and the grants"),
    (
        _LOST,
        "connection_lost",
        "the connection to the database was lost before the reply, so the call may have taken effect; repeat it",
    ),
    (_ROW_ERRORS, "storage_error", "the database rejected a row"),
    ((_ERRORS.PostgresError,), "storage_refused", "the database rejected a statement"),
)


def is_conflict(error: BaseException) -> bool:
    """Return True for a serialization failure or a deadlock. Nothing was written, so the transaction can run again."""
    return isinstance(error, (_ERRORS.SerializationError, _ERRORS.DeadlockDetectedError))


def is_locked_or_taken(error: BaseException) -> bool:
    """Return True if a row stayed locked or an id exists already. The statements of a transaction skip such rows."""
    return isinstance(error, (_ERRORS.LockNotAvailableError, _ERRORS.UniqueViolationError))


def is_temporary(error: BaseException) -> bool:
    """Return True if the server exists, but restarts or has no free connection, so that it will accept one later."""
    return isinstance(error, (*_RESTARTING, _ERRORS.TooManyConnectionsError))


def translate(error: BaseException) -> BaseException:
    """Return our error for a driver error, and other errors unchanged."""
    ours = None if isinstance(error, FlowFabricError) else _find_meaning(error)
    if ours is None:
        return error
    ours.__cause__ = error
    return ours


def translate_unsent(error: BaseException) -> BaseException:
    """Return our error for a driver error that was raised before anything was sent to the server."""
    if isinstance(error, _ERRORS.ProtocolViolationError) and "startup parameter" in str(error):
        return undeclared_pooler_error(f"refused a setting of the session ({error})")
    if isinstance(error, ServerUnreachable):
        message = f"cannot reach {error}; check that the server runs and that the address is right"
        unreachable = Unavailable("server_unreachable", message, sent=False)
        unreachable.__cause__ = error.__cause__
        return unreachable
    ours = translate(error)
    if ours is error or not isinstance(ours, Unavailable):
        return ours
    if ours.code == "connection_lost":
        message = f"no connection to the database could be opened; check that the server runs ({_describe(error)})"
        unsent = Unavailable("connection_lost", message, sent=False)
    else:
        unsent = Unavailable(ours.code, ours.message, sent=False)
    unsent.__cause__ = error
    return unsent


@contextmanager
def reaching(url: str) -> Iterator[None]:
    """Raise `ServerUnreachable` for a network error inside the block, in which a connection to `url` is opened."""
    try:
        yield
    except OSError as error:
        raise ServerUnreachable(f"{_server_address(url)} ({_network_reason(error)})") from error


def _server_address(url: str) -> str:
    """Return the hosts and ports of a URL, without the user and the password."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    hosts = parts.netloc.rpartition("@")[2] or ",".join(query.get("host", ())) or os.environ.get("PGHOST", "localhost")
    port = next(iter(query.get("port", ())), os.environ.get("PGPORT", "5432"))
    names = [unquote(host) for host in hosts.split(",")]
    return ", ".join(name if re.search(r":\d+$", name) or "/" in name else f"{name}:{port}" for name in names)


def _network_reason(error: OSError) -> str:
    """Return the reason of a network error in words. An error about several addresses has it only in its text."""
    number = re.search(r"\[Errno (\d+)\]", str(error))
    if isinstance(error, TimeoutError):
        return "no reply in time"
    if number is not None:
        return os.strerror(int(number[1])).lower()
    return error.strerror or str(error)


def undeclared_pooler_error(problem: str) -> InvalidRequest:
    """Return the error for a pooler that `connect` was not told about."""
    message = f"the address is that of a pooler, which {problem}; connect with pooler=True, or to the server itself"
    return InvalidRequest("pooler_undeclared", message)


def _find_meaning(error: BaseException) -> FlowFabricError | None:
    if isinstance(error, _ERRORS.DataError):
        return InvalidRequest("invalid_request", f"the database cannot store a value of the call ({_describe(error)})")
    for kinds, code, advice in _MEANING:
        if isinstance(error, kinds):
            return Unavailable(code, f"{advice} ({_describe(error)})")
    return None


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:200]
