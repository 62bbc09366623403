"""Tools for testing durable functions: a kit with a manual clock and planned crashes, sweeps, and direct calls."""

from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.direct import direct
from flowfabric.testing.driver import Stuck
from flowfabric.testing.kit import Kit
from flowfabric.testing.sweep import SweepResult, sweep
from flowfabric.testing.sync_kit import SyncKit

__all__ = [
    "Kit",
    "Stuck",
    "SweepResult",
    "SyncKit",
    "VirtualClock",
    "direct",
    "sweep",
]
