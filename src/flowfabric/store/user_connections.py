"""Code that both backends use to work on connections of users, and to run user code.

Classes of database libraries are looked up in `sys.modules`, so that this module imports none of these libraries. If
the program has a connection of a library, it has already imported that library.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flowfabric.core.errors import FlowFabricError, InvalidRequest, Unavailable

_SESSIONS = ("sqlalchemy.orm.Session", "sqlalchemy.orm.scoped_session")
_ASYNC_SESSIONS = ("sqlalchemy.ext.asyncio.AsyncSession", "sqlalchemy.ext.asyncio.async_scoped_session")
SQLALCHEMY = ("sqlalchemy.Connection", *_SESSIONS)
# `django.db.connection` is a proxy, and `django.db.connections["default"]` is a wrapper.
DJANGO = ("django.utils.connection.ConnectionProxy", "django.db.backends.base.base.BaseDatabaseWrapper")
ASYNC_SQLALCHEMY = ("sqlalchemy.ext.asyncio.AsyncConnection", *_ASYNC_SESSIONS)


def loaded_classes(*names: str) -> tuple[type[Any], ...]:
    """Return the named classes whose modules are already imported, for use with `isinstance`."""
    parts = [name.rpartition(".") for name in names]
    classes = [getattr(sys.modules.get(module), name, None) for module, _, name in parts]
    return tuple(kind for kind in classes if isinstance(kind, type))


def unwrap(connection: Any) -> Any:
    """Return the driver connection inside a connection of Django or SQLAlchemy. Return other connections unchanged."""
    if isinstance(connection, loaded_classes(*DJANGO)):
        return _unwrap_django(connection)
    if not isinstance(connection, loaded_classes(*SQLALCHEMY)):
        return connection
    with _sqlalchemy_errors():
        if isinstance(connection, loaded_classes(*_SESSIONS)):
            connection = connection.connection()
        # SQLAlchemy begins a transaction with the first statement it executes, and commits only if it began one.
        connection.exec_driver_sql("SELECT 1")
        return connection.connection.driver_connection


def _unwrap_django(connection: Any) -> Any:
    """Return the driver connection of a Django connection, which must be in a transaction."""
    # Django opens its connection on first use, and turns autocommit off inside `atomic`.
    if connection.connection is None or connection.autocommit:
        raise no_transaction_error(connection, "enter `with transaction.atomic():`")
    if connection.needs_rollback:
        raise aborted_error()
    return connection.connection


async def unwrap_async(connection: Any) -> Any:
    """Return the driver connection of an asynchronous SQLAlchemy connection. Return other connections unchanged."""
    if not isinstance(connection, loaded_classes(*ASYNC_SQLALCHEMY)):
        return connection
    with _sqlalchemy_errors():
        if isinstance(connection, loaded_classes(*_ASYNC_SESSIONS)):
            connection = await connection.connection()
        await connection.exec_driver_sql("SELECT 1")
        return (await connection.get_raw_connection()).driver_connection


def unsupported_error(connection: object, joinable: str) -> FlowFabricError:
    """Return the error for a connection of a library that the backend does not support."""
    message = f"cannot join a transaction of {_class_name(connection)}; use a connection of {joinable}"
    return InvalidRequest("unsupported_connection", message, connection=_class_name(connection))


def not_async_error(connection: object) -> FlowFabricError:
    """Return the error for a synchronous connection in an asynchronous call."""
    message = f"{_class_name(connection)} is a synchronous connection; use submit_in_transaction_sync"
    return InvalidRequest("connection_not_async", message, connection=_class_name(connection))


def not_sync_error(connection: object) -> FlowFabricError:
    """Return the error for an asynchronous connection in a synchronous call."""
    message = f"{_class_name(connection)} is an asynchronous connection; use `await submit_in_transaction`"
    return InvalidRequest("connection_not_sync", message, connection=_class_name(connection))


def closed_error(connection: object) -> FlowFabricError:
    """Return the error for a connection that is closed or back in its pool."""
    message = f"{_class_name(connection)} is closed; begin the transaction again on an open connection"
    return Unavailable("connection_closed", message, connection=_class_name(connection))


def no_transaction_error(connection: object, begin: str) -> FlowFabricError:
    """Return the error for a connection without an open transaction."""
    message = f"{_class_name(connection)} has no open transaction to join; {begin} first, or use submit"
    return InvalidRequest("no_transaction", message, connection=_class_name(connection))


def aborted_error() -> FlowFabricError:
    """Return the error for a transaction that can only be rolled back."""
    return InvalidRequest("transaction_aborted", "an earlier statement of the transaction failed; roll it back first")


def other_database_error(found: str, expected: str) -> FlowFabricError:
    """Return the error for a connection to a database that is not the engine's."""
    message = (
        f"the connection is to {found}, but the engine is on {expected}; use a connection to the engine's database"
    )
    return InvalidRequest("other_database", message, found=found, wanted=expected)


@contextmanager
def _sqlalchemy_errors() -> Iterator[None]:
    try:
        yield
    except loaded_classes("sqlalchemy.exc.ResourceClosedError") as error:
        raise Unavailable(
            "connection_closed", f"the connection is closed ({error}); begin the transaction again on an open one"
        ) from error
    except loaded_classes("sqlalchemy.exc.PendingRollbackError") as error:
        raise aborted_error() from error
    except loaded_classes("sqlalchemy.exc.DBAPIError") as error:
        # The backends translate driver errors. SQLAlchemy wraps a driver error once, or twice if the driver is asyncpg.
        original = getattr(error, "orig", None) or error
        raise original.__cause__ or original from error
    except loaded_classes("sqlalchemy.exc.SQLAlchemyError") as error:
        raise InvalidRequest("unsupported_connection", f"SQLAlchemy returned no connection: {error}") from error


def _class_name(connection: object) -> str:
    kind = type(connection)
    return f"{kind.__module__}.{kind.__qualname__}"


class UserCodeError(Exception):
    """A wrapper for an exception of user code, so that the exception is not translated as a driver error."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def wrong_body_error(expected: str) -> FlowFabricError:
    """Return the error for user code of the wrong kind, such as an async function on SQLite."""
    return InvalidRequest("invalid_type", f"body must be {expected}", field="body")


def ended_early_error() -> FlowFabricError:
    """Return the error for user code that committed or rolled back the engine's transaction."""
    message = "body ended the engine's transaction, so its step was not recorded; use savepoints only"
    return InvalidRequest("no_transaction", message)
