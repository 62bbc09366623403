"""Ends, resumes or escalates suspensions whose timeout has passed, as each of them says."""

from flowfabric.ops.settle_waits import time_out_suspensions
from flowfabric.reconcilers.duty import Duty


def suspension_timeout() -> Duty:
    """The duty over a suspension's `timeout_at`."""
    return Duty("suspension_timeout", time_out_suspensions)
