"""Removes finished flows, as a whole, when the retention of their last member has passed."""

from flowfabric.ops.purge import purge_flows
from flowfabric.reconcilers.duty import Duty


def flow_retention() -> Duty:
    """The duty over a flow's `purge_at`."""
    return Duty("flow_retention", purge_flows)
