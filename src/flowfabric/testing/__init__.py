"""What users need to test durable work: a clock that moves only when told."""

from flowfabric.testing.clock import VirtualClock

__all__ = ["VirtualClock"]
