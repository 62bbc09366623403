"""The façade: `connect` opens a store, and the engine groups the operations by what they act on."""

from flowfabric.engine.connecting import connect
from flowfabric.engine.engine import Engine

__all__ = ["Engine", "connect"]
