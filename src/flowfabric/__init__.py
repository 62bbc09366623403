"""FlowFabric: durable functions for Python, on SQLite or PostgreSQL.

This package exports `App`, `step` and everything else that a task uses. `flowfabric.engine` is the engine on which it
is built, `flowfabric.sync` has the same calls for plain functions, and `flowfabric.testing` is the kit for tests.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    __version__: str
    from flowfabric.app.app import App as App
    from flowfabric.app.flow import Flow as Flow
    from flowfabric.app.flow import FlowHandle as FlowHandle
    from flowfabric.app.flow import Node as Node
    from flowfabric.app.handle import Handle as Handle
    from flowfabric.app.task import Call as Call
    from flowfabric.app.task import Task as Task
    from flowfabric.core.errors import Conflict as Conflict
    from flowfabric.core.errors import FlowFabricError as FlowFabricError
    from flowfabric.core.errors import InvalidRequest as InvalidRequest
    from flowfabric.core.errors import NotFound as NotFound
    from flowfabric.core.errors import Refused as Refused
    from flowfabric.core.errors import Unavailable as Unavailable
    from flowfabric.core.executions.records import Event as Event
    from flowfabric.core.executions.views import Description as Description
    from flowfabric.core.policy import Backoff as Backoff
    from flowfabric.core.waits.conditions import AllOf as AllOf
    from flowfabric.core.waits.conditions import AnyOf as AnyOf
    from flowfabric.core.waits.conditions import Count as Count
    from flowfabric.core.waits.conditions import Single as Single
    from flowfabric.core.waits.decisions import ApprovalDecision as ApprovalDecision
    from flowfabric.engine.engine import Engine as Engine
    from flowfabric.engine.opener import connect as connect
    from flowfabric.runtime.calls.approval import Approval as Approval
    from flowfabric.runtime.calls.approval import Callback as Callback
    from flowfabric.runtime.calls.approval import approval as approval
    from flowfabric.runtime.calls.approval import callback as callback
    from flowfabric.runtime.calls.context import changed as changed
    from flowfabric.runtime.calls.context import current as current
    from flowfabric.runtime.calls.context import logger as logger
    from flowfabric.runtime.calls.context import now as now
    from flowfabric.runtime.calls.context import progress as progress
    from flowfabric.runtime.calls.context import rng as rng
    from flowfabric.runtime.calls.context import uuid4 as uuid4
    from flowfabric.runtime.calls.groups import gather as gather
    from flowfabric.runtime.calls.groups import race as race
    from flowfabric.runtime.calls.groups import settle as settle
    from flowfabric.runtime.calls.saga import Compensations as Compensations
    from flowfabric.runtime.calls.saga import saga as saga
    from flowfabric.runtime.calls.sleep import poll as poll
    from flowfabric.runtime.calls.sleep import sleep as sleep
    from flowfabric.runtime.calls.sleep import sleep_until as sleep_until
    from flowfabric.runtime.calls.step import step as step
    from flowfabric.runtime.calls.wait_signal import wait_for as wait_for
    from flowfabric.runtime.calls.wait_signal import wait_signal as wait_signal
    from flowfabric.runtime.signals import Delivery as Delivery
    from flowfabric.runtime.signals import Signal as Signal
    from flowfabric.values.aliases import Durable as Durable
    from flowfabric.values.aliases import Duration as Duration
    from flowfabric.values.errors import AllFailed as AllFailed
    from flowfabric.values.errors import CancelRequested as CancelRequested
    from flowfabric.values.errors import Diverged as Diverged
    from flowfabric.values.errors import ExecutionCancelled as ExecutionCancelled
    from flowfabric.values.errors import ExecutionExpired as ExecutionExpired
    from flowfabric.values.errors import ExecutionFailed as ExecutionFailed
    from flowfabric.values.errors import ExecutionSkipped as ExecutionSkipped
    from flowfabric.values.errors import InputMismatch as InputMismatch
    from flowfabric.values.errors import LeaseLost as LeaseLost
    from flowfabric.values.errors import PermanentError as PermanentError
    from flowfabric.values.errors import StepFailed as StepFailed
    from flowfabric.values.errors import Unwind as Unwind
    from flowfabric.values.errors import ValueRefused as ValueRefused
    from flowfabric.values.errors import WaitOverridden as WaitOverridden
    from flowfabric.values.records import ApprovalRequest as ApprovalRequest
    from flowfabric.values.records import Approved as Approved
    from flowfabric.values.records import Cancelled as Cancelled
    from flowfabric.values.records import Completed as Completed
    from flowfabric.values.records import ConditionMet as ConditionMet
    from flowfabric.values.records import ErrorInfo as ErrorInfo
    from flowfabric.values.records import Expired as Expired
    from flowfabric.values.records import Failed as Failed
    from flowfabric.values.records import RaceResult as RaceResult
    from flowfabric.values.records import Received as Received
    from flowfabric.values.records import Rejected as Rejected
    from flowfabric.values.records import Skipped as Skipped
    from flowfabric.values.records import TaskContext as TaskContext
    from flowfabric.values.records import TimedOut as TimedOut
    from flowfabric.worker import Worker as Worker

__all__ = [
    "AllFailed", "AllOf", "AnyOf", "App", "Approval", "ApprovalDecision", "ApprovalRequest", "Approved", "Backoff",
    "Call", "Callback", "CancelRequested", "Cancelled", "Compensations", "Completed", "ConditionMet", "Conflict",
    "Count", "Delivery", "Description", "Diverged", "Durable", "Duration", "Engine", "ErrorInfo", "Event",
    "ExecutionCancelled", "ExecutionExpired", "ExecutionFailed", "ExecutionSkipped", "Expired", "Failed", "Flow",
    "FlowFabricError", "FlowHandle", "Handle", "InputMismatch", "InvalidRequest", "LeaseLost", "Node", "NotFound",
    "PermanentError", "RaceResult", "Received", "Refused", "Rejected", "Signal", "Single", "Skipped", "StepFailed",
    "Task", "TaskContext", "TimedOut", "Unavailable", "Unwind", "ValueRefused", "WaitOverridden", "Worker",
    "approval", "callback", "changed", "connect", "current", "gather", "logger", "now", "poll", "progress", "race",
    "rng", "saga", "settle", "sleep", "sleep_until", "step", "uuid4", "wait_for", "wait_signal",
]  # fmt: skip

# The module that defines each public name. It is imported when the name is first used, so that `flowfabric --help`
# starts fast.
_MODULES = {
    "App": "app.app",
    "Flow": "app.flow", "FlowHandle": "app.flow", "Node": "app.flow",
    "Handle": "app.handle",
    "Call": "app.task", "Task": "app.task",
    "Conflict": "core.errors", "FlowFabricError": "core.errors", "InvalidRequest": "core.errors",
    "NotFound": "core.errors", "Refused": "core.errors", "Unavailable": "core.errors",
    "Event": "core.executions.records",
    "Description": "core.executions.views",
    "Backoff": "core.policy",
    "AllOf": "core.waits.conditions", "AnyOf": "core.waits.conditions", "Count": "core.waits.conditions",
    "Single": "core.waits.conditions",
    "Engine": "engine.engine",
    "connect": "engine.opener",
    "Approval": "runtime.calls.approval", "Callback": "runtime.calls.approval", "approval": "runtime.calls.approval",
    "callback": "runtime.calls.approval",
    "changed": "runtime.calls.context", "current": "runtime.calls.context", "logger": "runtime.calls.context",
    "now": "runtime.calls.context", "progress": "runtime.calls.context", "rng": "runtime.calls.context",
    "uuid4": "runtime.calls.context",
    "gather": "runtime.calls.groups", "race": "runtime.calls.groups", "settle": "runtime.calls.groups",
    "Compensations": "runtime.calls.saga", "saga": "runtime.calls.saga",
    "poll": "runtime.calls.sleep", "sleep": "runtime.calls.sleep", "sleep_until": "runtime.calls.sleep",
    "step": "runtime.calls.step",
    "wait_for": "runtime.calls.wait_signal", "wait_signal": "runtime.calls.wait_signal",
    "Delivery": "runtime.signals", "Signal": "runtime.signals",
    "Durable": "values.aliases", "Duration": "values.aliases",
    "AllFailed": "values.errors", "CancelRequested": "values.errors", "Diverged": "values.errors",
    "ExecutionCancelled": "values.errors", "ExecutionExpired": "values.errors", "ExecutionFailed": "values.errors",
    "ExecutionSkipped": "values.errors", "InputMismatch": "values.errors", "LeaseLost": "values.errors",
    "PermanentError": "values.errors", "StepFailed": "values.errors", "Unwind": "values.errors",
    "ValueRefused": "values.errors", "WaitOverridden": "values.errors",
    "ApprovalDecision": "core.waits.decisions", "ApprovalRequest": "values.records", "Approved": "values.records",
    "Cancelled": "values.records", "Completed": "values.records", "ConditionMet": "values.records",
    "ErrorInfo": "values.records", "Expired": "values.records", "Failed": "values.records",
    "RaceResult": "values.records", "Received": "values.records", "Rejected": "values.records",
    "Skipped": "values.records", "TaskContext": "values.records", "TimedOut": "values.records",
    "Worker": "worker",
}  # fmt: skip


def __getattr__(name: str) -> object:
    """Import a public name on its first use."""
    if name == "__version__":
        from importlib.metadata import version

        return version("flowfabric")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted({"__version__", *__all__, *(name for name in globals() if name.startswith("__"))})
