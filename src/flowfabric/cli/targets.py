"""The store and the app that a command works on."""

from __future__ import annotations

import argparse
import os
from collections.abc import Awaitable, Callable
from uuid import UUID

from flowfabric.app.app import App
from flowfabric.app.loader import load_app
from flowfabric.app.store_address import (
    STORE_VARIABLE,
    default_store,
    redact_password,
    resolve_store,
    working_directory,
)
from flowfabric.cli.spec import DEFAULTS
from flowfabric.core.errors import FlowFabricError, InvalidRequest, NotFound
from flowfabric.core.ids import parse_id_prefix
from flowfabric.engine import Engine, FlowPage, Page
from flowfabric.engine.opener import EngineOpener, StoreOptions, connect


def open_for_reading(arguments: argparse.Namespace) -> EngineOpener:
    """Open the store for a command that only reads. Neither the store nor its schema is created."""
    return _connect(arguments, durable=False, migrate=False)


def open_for_writing(arguments: argparse.Namespace) -> EngineOpener:
    """Open the store for a command whose acknowledged writes must be durable. The store is not created."""
    return _connect(arguments, durable=not arguments.not_durable, migrate=False)


def open_and_migrate(arguments: argparse.Namespace) -> EngineOpener:
    """Open the store; create it or update its schema if necessary."""
    return _connect(arguments, durable=not arguments.not_durable, migrate=True)


async def find_execution(engine: Engine, text: str) -> UUID:
    """Return the id of the execution that an argument names by its id or by the start of its id."""
    return await _complete_id(text, "execution", lambda prefix: engine.executions.list(id_prefix=prefix, limit=2))


async def find_flow(engine: Engine, text: str) -> UUID:
    """Return the id of the flow that an argument names by its id or by the start of its id."""
    return await _complete_id(text, "flow", lambda prefix: engine.flows.list(id_prefix=prefix, limit=2))


async def _complete_id(text: str, what: str, fetch: Callable[[str], Awaitable[Page | FlowPage]]) -> UUID:
    first, last = parse_id_prefix(text, "ID")
    if first == last:
        # A purged execution is no longer listed, but its events can still be read by its id.
        return first
    ids = [item.id for item in (await fetch(text)).items]
    if not ids:
        raise NotFound(f"{what}_not_found", f"no {what} of this namespace has an id that starts with {text}", id=text)
    if len(ids) > 1:
        message = f"{text} is the start of several ids, such as {ids[0]} and {ids[1]}; add characters"
        raise InvalidRequest("ambiguous_id", message, ids=ids)
    return ids[0]


def store_url(arguments: argparse.Namespace) -> str:
    """Return the address of the store."""
    return default_store() if arguments.store is None else str(arguments.store)


def _connect(arguments: argparse.Namespace, *, durable: bool, migrate: bool) -> EngineOpener:
    return connect(
        store_url(arguments),
        namespace=arguments.namespace,
        schema=arguments.schema,
        durable=durable,
        migrate=migrate,
        pooler=arguments.pooler,
        pool_size=2,
    )


def load_app_with_options(arguments: argparse.Namespace) -> App:
    """Import the app that --app names, and return it. Options for the store apply only where the app sets no value."""
    named_store = None if arguments.store is None else resolve_store(arguments.store, working_directory())
    if named_store is not None:
        os.environ[STORE_VARIABLE] = named_store
    app = import_app(arguments.app)
    if named_store is not None and app.store != named_store:
        message = f"the app sets its own store, {redact_password(app.store)}; leave out --store"
        raise InvalidRequest("other_store", message)
    if arguments.namespace not in ("default", app.namespace):
        message = f"the app uses namespace {app.namespace!r}; leave out --namespace"
        raise InvalidRequest("other_namespace", message)
    app.engines.set_options(**_store_options(arguments))
    return app


def import_app(address: str) -> App:
    """Return the app at `module:app`. An exception during its import becomes an `InvalidRequest`."""
    module = address.partition(":")[0]
    if module.endswith(".py") or not all(part.isidentifier() for part in module.split(".")):
        message = f"the app must be named by its module, such as shop.tasks:app, not {address[:60]!r}"
        raise InvalidRequest("invalid_address", message)
    try:
        return load_app(address)
    except FlowFabricError:
        raise
    except (Exception, SystemExit) as error:
        message = f"{address} cannot be imported: {type(error).__name__}: {error}"
        raise InvalidRequest("import_failed", message) from error


def _store_options(arguments: argparse.Namespace) -> StoreOptions:
    """Return only the options that differ from their defaults, so that a default does not override the app's value."""
    options: StoreOptions = {}
    if arguments.schema != DEFAULTS["schema"]:
        options["schema"] = arguments.schema
    if arguments.pooler:
        options["pooler"] = True
    if arguments.not_durable:
        options["durable"] = False
    return options
