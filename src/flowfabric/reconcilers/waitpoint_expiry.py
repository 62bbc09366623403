"""Closes waitpoints that were handed out, are past their time, and that nobody has waited on."""

from flowfabric.ops.settle_waits import expire_waitpoints
from flowfabric.reconcilers.duty import Duty


def waitpoint_expiry() -> Duty:
    """The duty over a pending waitpoint's `expires_at`."""
    return Duty("waitpoint_expiry", expire_waitpoints)
