"""Delivers the signals of timers whose time has come."""

from flowfabric.ops.settle_waits import fire_timers
from flowfabric.reconcilers.duty import Duty


def timers() -> Duty:
    """The duty over a timer's `fires_at`."""
    return Duty("timers", fire_timers)
