"""The names of `flowfabric` for plain functions. Each call waits and returns the value.

`App`, `Task`, `Handle`, `Flow` and `FlowHandle` are the classes of their `.sync` views. The others are durable calls
for tasks that are plain functions. `step(…)` waits for its result. Approvals and callbacks have `.wait()`, so that
their tokens can be handed out before. Groups take functions without arguments: `gather(lambda: …, lambda: …)`.
"""

from flowfabric.app.sync_client import App, Flow, FlowHandle, Handle, Task
from flowfabric.runtime.calls.context import current
from flowfabric.sync.calls import (
    Approval,
    Callback,
    Compensations,
    Saga,
    StepFunction,
    approval,
    callback,
    changed,
    gather,
    now,
    poll,
    progress,
    race,
    rng,
    saga,
    settle,
    sleep,
    sleep_until,
    step,
    uuid4,
    wait_for,
    wait_signal,
)

__all__ = [
    "App", "Approval", "Callback", "Compensations", "Flow", "FlowHandle", "Handle", "Saga", "StepFunction", "Task",
    "approval", "callback", "changed", "current", "gather", "now", "poll", "progress", "race", "rng", "saga", "settle",
    "sleep", "sleep_until", "step", "uuid4", "wait_for", "wait_signal",
]  # fmt: skip
