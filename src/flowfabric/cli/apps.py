"""Importing a user's app by its address."""

from __future__ import annotations

from flowfabric.core.errors import FlowFabricError, InvalidRequest
from flowfabric.sdk.app import App
from flowfabric.sdk.importing import load_app


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
