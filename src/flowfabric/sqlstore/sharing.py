"""What the backends share about running code of the user's inside a transaction of the engine."""

from __future__ import annotations

from flowfabric.core.errors import FlowFabricError, InvalidRequest


class RaisedByUser(Exception):
    """Carries what the user's code raised past the places where errors of drivers are translated."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def wrong_kind(wanted: str) -> FlowFabricError:
    """For a function that does not fit the backend."""
    return InvalidRequest("invalid_type", f"body must be {wanted}", field="body")


def ended_early() -> FlowFabricError:
    """For a function that committed or rolled back what was not its own."""
    message = "body ended the engine's transaction, so its step was not recorded; use savepoints only"
    return InvalidRequest("no_transaction", message)
