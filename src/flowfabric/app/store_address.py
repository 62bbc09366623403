"""The store that an app or a command uses if none is named."""

from __future__ import annotations

import os

from flowfabric.core.store_address import make_absolute

STORE_VARIABLE = "FLOWFABRIC_STORE"
DEFAULT_STORE = "flowfabric.db"


def default_store() -> str:
    """Return the value of FLOWFABRIC_STORE, or else `flowfabric.db` in the working directory."""
    return os.environ.get(STORE_VARIABLE) or DEFAULT_STORE


def working_directory() -> str:
    """Return the working directory, or an empty string if it was deleted."""
    try:
        return os.getcwd()  # noqa: PTH109 - only the text is needed
    except FileNotFoundError:
        return ""


def redact_password(store: str) -> str:
    """Return the address of the store without user and password."""
    scheme, separator, rest = store.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if separator else store


def resolve_store(address: str | None, folder: str) -> str:
    """Return the address of a store, or of the default store, with an absolute path."""
    return make_absolute(address or default_store(), folder)
