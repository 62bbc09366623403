"""The worker: claims executions, runs them in slots, renews leases and releases those it cannot finish."""

from flowfabric.worker.event_loop import event_loop_runner, new_event_loop
from flowfabric.worker.worker import Worker, run_until_signal, stop_on_signals

__all__ = ["Worker", "new_event_loop", "event_loop_runner", "run_until_signal", "stop_on_signals"]
