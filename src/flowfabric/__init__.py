"""FlowFabric: a durable execution engine that a Python program embeds, on SQLite or PostgreSQL."""

from flowfabric.core.errors import Conflict, FlowFabricError, InvalidRequest, NotFound, Refused, Unavailable
from flowfabric.engine.connecting import connect
from flowfabric.engine.engine import Engine

__all__ = [
    "Conflict", "Engine", "FlowFabricError", "InvalidRequest", "NotFound", "Refused", "Unavailable", "connect",
]  # fmt: skip
