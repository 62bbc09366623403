"""Cancels executions whose time to clean up is over."""

from flowfabric.core.control import decide_due_cancel
from flowfabric.reconcilers.duty import Duty, deciding


def cancel_grace() -> Duty:
    """The duty over `cancel_due_at`."""
    return Duty("cancel_grace", deciding(decide_due_cancel))
