"""Ends the members of cancelled flows, and the losers of races, that an earlier transaction has left."""

from flowfabric.ops.cancel_flow import sweep
from flowfabric.reconcilers.duty import Duty


def flow_cancellation() -> Duty:
    """The duty over a flow's `sweep_at`."""
    return Duty("flow_cancellation", sweep)
