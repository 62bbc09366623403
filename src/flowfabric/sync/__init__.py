"""The sync face: the words of `flowfabric` for plain functions, each of which waits and answers the value.

`App`, `Task`, `Handle`, `Flow` and `FlowHandle` are what `.sync` of theirs is. The others are durable calls for tasks
that are plain functions: `step(…)` waits for its result, things with a face before the wait have `.wait()`, and groups
take functions without arguments: `gather(lambda: …, lambda: …)`.
"""

from flowfabric.sdk.ambient import current
from flowfabric.sdk.sync_client import App, Flow, FlowHandle, Handle, Task
from flowfabric.sync.calls import (
    Approval,
    Callback,
    Steps,
    approval,
    callback,
    changed,
    gather,
    now,
    poll,
    progress,
    race,
    rng,
    settle,
    sleep,
    sleep_until,
    step,
    uuid4,
    wait_for,
    wait_signal,
)
from flowfabric.sync.sagas import Saga, Undo, saga

__all__ = [
    "App", "Approval", "Callback", "Flow", "FlowHandle", "Handle", "Saga", "Steps", "Task", "Undo", "approval",
    "callback", "changed", "current", "gather", "now", "poll", "progress", "race", "rng", "saga", "settle", "sleep",
    "sleep_until", "step", "uuid4", "wait_for", "wait_signal",
]  # fmt: skip
