"""What users need to test durable work: a kit with a clock that moves only when told, and crashes where they want them."""

from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.driving import Stuck
from flowfabric.testing.kit import Kit
from flowfabric.testing.sync_kit import SyncKit

__all__ = ["Kit", "Stuck", "SyncKit", "VirtualClock"]
