"""What users need to test durable work: a kit that moves time and kills runs as it is told, and a clock for engines."""

from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.direct import direct
from flowfabric.testing.driving import Stuck
from flowfabric.testing.kit import Kit
from flowfabric.testing.sweeping import Swept, sweep
from flowfabric.testing.sync_kit import SyncKit

__all__ = ["Kit", "Stuck", "Swept", "SyncKit", "VirtualClock", "direct", "sweep"]
