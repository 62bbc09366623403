"""Makes delayed work ready when its time has come: scheduled starts, worker delays, retry backoff."""

from flowfabric.core.control import decide_ready
from flowfabric.reconcilers.duty import Duty, deciding


def delayed_work() -> Duty:
    """The duty over `ready_at`."""
    return Duty("delayed_work", deciding(decide_ready))
