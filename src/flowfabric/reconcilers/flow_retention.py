"""Removes finished flows, as a whole, when the retention of their last member has passed."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from flowfabric.ops.purge import purge_flows
from flowfabric.reconcilers.duty import Duty


def flow_retention(keep_events: timedelta) -> Duty:
    """The duty over a flow's `purge_at`."""
    return Duty("flow_retention", partial(purge_flows, keep_events=keep_events))
