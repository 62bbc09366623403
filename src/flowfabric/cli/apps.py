"""Importing a user's app by its address, and what the options for the store mean to it."""

from __future__ import annotations

import argparse
import os

from flowfabric.cli.verbs.declaring import DEFAULTS
from flowfabric.core.errors import FlowFabricError, InvalidRequest
from flowfabric.engine.connecting import StoreOptions
from flowfabric.sdk.app import App
from flowfabric.sdk.default_store import STORE_VARIABLE
from flowfabric.sdk.importing import load_app


def app_of(arguments: argparse.Namespace) -> App:
    """The app with its store. What the options for the store say counts if the app itself says nothing else."""
    if arguments.store is not None:
        os.environ[STORE_VARIABLE] = arguments.store
    app = imported_app(arguments.app)
    if arguments.store is not None and app.store != arguments.store:
        message = f"the app has a store of its own, {shown_store(app.store)}; leave --store out"
        raise InvalidRequest("other_store", message)
    if arguments.namespace not in ("default", app.namespace):
        message = f"the app works in namespace {app.namespace!r}; leave --namespace out"
        raise InvalidRequest("other_namespace", message)
    app.engines.told(**_options(arguments))
    return app


def imported_app(address: str) -> App:
    """The app at `module:app`; whatever its import raises is told in one line."""
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


def shown_store(store: str) -> str:
    """The address without what may be a password."""
    scheme, separator, rest = store.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if separator else store


def _options(arguments: argparse.Namespace) -> StoreOptions:
    """Those that were given; what is the default may also be what nobody said."""
    given: StoreOptions = {}
    if arguments.schema != DEFAULTS["schema"]:
        given["schema"] = arguments.schema
    if arguments.pooler:
        given["pooler"] = True
    if arguments.not_durable:
        given["durable"] = False
    return given
