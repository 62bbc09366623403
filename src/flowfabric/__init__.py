"""FlowFabric: durable functions for Python, on SQLite or PostgreSQL.

`App`, `step` and what a task may call are here. The engine below them is in `flowfabric.engine`, the same calls for
plain functions in `flowfabric.sync`, and what tests need in `flowfabric.testing`.
"""

import typing as _typing

if _typing.TYPE_CHECKING:
    from flowfabric.face import *

__all__ = [
    "AllFailed", "AllOf", "AnyOf", "App", "Approval", "Approved", "Ask", "Backoff", "Call", "Callback",
    "CancelRequested", "Cancelled", "Completed", "Conflict", "Count", "Current", "Decision", "Delivery", "Description",
    "Diverged", "Durable", "Duration", "Engine", "ErrorInfo", "Event", "ExecutionCancelled", "ExecutionExpired",
    "ExecutionFailed", "ExecutionSkipped", "Expired", "Failed", "Flow", "FlowFabricError", "FlowHandle", "Handle",
    "InputMismatch", "InvalidRequest", "LeaseLost", "Met", "Node", "NotFound", "PermanentError", "Received", "Refused",
    "Rejected", "Signal", "Single", "Skipped", "StepFailed", "Task", "TimedOut", "Unavailable", "Undo", "Unwind",
    "ValueRefused", "WaitOverridden", "Winner", "Worker", "approval", "callback", "changed", "connect", "current",
    "gather", "logger", "now", "poll", "progress", "race", "rng", "saga", "settle", "sleep", "sleep_until", "step",
    "uuid4", "wait_for", "wait_signal",
]  # fmt: skip


if not _typing.TYPE_CHECKING:
    # With these comes the whole engine, which a program that declares tasks does not need before it connects.
    _APART = {
        "Engine": "flowfabric.engine.engine", "Worker": "flowfabric.worker", "connect": "flowfabric.engine.connecting",
    }  # fmt: skip

    def __getattr__(name):
        """The names are fetched when one of them is first asked for: whoever only wants the command's help is quick."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        if name in _APART:
            globals()[name] = getattr(import_module(_APART[name]), name)
        else:
            face = import_module("flowfabric.face")
            globals().update({each: getattr(face, each) for each in __all__ if each not in _APART})
        return globals()[name]
