"""Expires executions past their deadline, in whatever state they are."""

from flowfabric.core.control import decide_deadline
from flowfabric.reconcilers.duty import Duty, deciding


def deadline() -> Duty:
    """The duty over `deadline_at`."""
    return Duty("deadline", deciding(decide_deadline))
