"""Which store is meant when nobody says."""

from __future__ import annotations

import os

STORE_VARIABLE = "FLOWFABRIC_STORE"
DEFAULT_STORE = "flowfabric.db"


def default_store() -> str:
    """What the variable FLOWFABRIC_STORE says, and otherwise `flowfabric.db` in the working directory."""
    return os.environ.get(STORE_VARIABLE) or DEFAULT_STORE
