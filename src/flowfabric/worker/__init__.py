"""The worker: it claims work, gives it slots, keeps its leases alive and gives back what it cannot finish."""

from flowfabric.worker.event_loop import new_event_loop, own_runner
from flowfabric.worker.signalled import run_until_signalled, stopped_by_signals
from flowfabric.worker.worker import Worker

__all__ = ["Worker", "new_event_loop", "own_runner", "run_until_signalled", "stopped_by_signals"]
