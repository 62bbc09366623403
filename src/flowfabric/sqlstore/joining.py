"""What the backends share about connections of the caller's: which library they come from, and what is wrong with them.

Nothing is imported to find out. A connection of a library exists only if the program has imported that library.
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
ASYNC_SQLALCHEMY = ("sqlalchemy.ext.asyncio.AsyncConnection", *_ASYNC_SESSIONS)


def loaded(*names: str) -> tuple[type[Any], ...]:
    """Those of the named classes whose module the program has imported; fit for `isinstance`."""
    parts = [name.rpartition(".") for name in names]
    found = [getattr(sys.modules.get(module), name, None) for module, _, name in parts]
    return tuple(kind for kind in found if isinstance(kind, type))


def unwrapped(connection: Any) -> Any:
    """The driver's connection under one of SQLAlchemy's, with its transaction begun; any other as it is."""
    if not isinstance(connection, loaded(*SQLALCHEMY)):
        return connection
    with _sqlalchemy_errors():
        if isinstance(connection, loaded(*_SESSIONS)):
            connection = connection.connection()
        # SQLAlchemy begins with the first statement that it sees, and commits only what it knows to have begun.
        connection.exec_driver_sql("SELECT 1")
        return connection.connection.driver_connection


async def unwrapped_async(connection: Any) -> Any:
    """The same for asynchronous connections."""
    if not isinstance(connection, loaded(*ASYNC_SQLALCHEMY)):
        return connection
    with _sqlalchemy_errors():
        if isinstance(connection, loaded(*_ASYNC_SESSIONS)):
            connection = await connection.connection()
        await connection.exec_driver_sql("SELECT 1")
        return (await connection.get_raw_connection()).driver_connection


def unsupported(connection: object, joinable: str) -> FlowFabricError:
    """For a connection that no transaction of the engine's backend can be on."""
    message = f"cannot join a transaction of {_named(connection)}; this engine joins those of {joinable}"
    return InvalidRequest("unsupported_connection", message, connection=_named(connection))


def not_async(connection: object) -> FlowFabricError:
    """For a synchronous connection in the asynchronous call."""
    message = f"{_named(connection)} is a synchronous connection; use submit_within_sync"
    return InvalidRequest("connection_not_async", message, connection=_named(connection))


def not_sync(connection: object) -> FlowFabricError:
    """For an asynchronous connection in the synchronous call."""
    message = f"{_named(connection)} is an asynchronous connection; use `await submit_within`"
    return InvalidRequest("connection_not_sync", message, connection=_named(connection))


def closed(connection: object) -> FlowFabricError:
    """For a connection that was closed, broke, or was given back to its pool: its transaction is gone."""
    message = f"{_named(connection)} is closed; begin the transaction again on an open connection"
    return Unavailable("connection_closed", message, connection=_named(connection))


def no_transaction(connection: object, begin: str) -> FlowFabricError:
    """For a connection on which every statement commits by itself."""
    message = f"{_named(connection)} has no open transaction to join; {begin} first, or use submit"
    return InvalidRequest("no_transaction", message, connection=_named(connection))


def aborted() -> FlowFabricError:
    """For a transaction in which nothing works any more."""
    return InvalidRequest("transaction_aborted", "a statement of the transaction failed before; roll it back first")


def other_database(found: str, wanted: str) -> FlowFabricError:
    """For a connection to a database that is not the engine's."""
    message = f"the connection is to {found}, the engine is on {wanted}; a transaction cannot span both"
    return InvalidRequest("other_database", message, found=found, wanted=wanted)


@contextmanager
def _sqlalchemy_errors() -> Iterator[None]:
    try:
        yield
    except loaded("sqlalchemy.exc.ResourceClosedError") as error:
        raise Unavailable("connection_closed", f"begin the transaction again on an open connection: {error}") from error
    except loaded("sqlalchemy.exc.PendingRollbackError") as error:
        raise aborted() from error
    except loaded("sqlalchemy.exc.DBAPIError") as error:
        # The backends translate the errors of drivers, which SQLAlchemy wraps once, over asyncpg twice.
        original = getattr(error, "orig", None) or error
        raise original.__cause__ or original from error
    except loaded("sqlalchemy.exc.SQLAlchemyError") as error:
        raise InvalidRequest("unsupported_connection", f"SQLAlchemy gave no connection: {error}") from error


def _named(connection: object) -> str:
    kind = type(connection)
    return f"{kind.__module__}.{kind.__qualname__}"
