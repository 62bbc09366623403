"""The public names of `flowfabric`, each from where it is made."""

from typing import TYPE_CHECKING

from flowfabric.core.conditions import AllOf, AnyOf, Count, Single
from flowfabric.core.errors import Conflict, FlowFabricError, InvalidRequest, NotFound, Refused, Unavailable
from flowfabric.core.policy import Backoff
from flowfabric.core.records import Event
from flowfabric.core.views import Description
from flowfabric.sdk.aliases import Durable, Duration
from flowfabric.sdk.ambient import changed, current, logger, now, progress, rng, uuid4
from flowfabric.sdk.app import App
from flowfabric.sdk.approvals import Approval, Callback, approval, callback
from flowfabric.sdk.errors import (
    AllFailed,
    CancelRequested,
    Diverged,
    ExecutionCancelled,
    ExecutionExpired,
    ExecutionFailed,
    ExecutionSkipped,
    InputMismatch,
    LeaseLost,
    PermanentError,
    StepFailed,
    Unwind,
    ValueRefused,
    WaitOverridden,
)
from flowfabric.sdk.flows import Flow, FlowHandle, Node
from flowfabric.sdk.groups import gather, race, settle
from flowfabric.sdk.handles import Handle
from flowfabric.sdk.records import (
    Approved,
    Ask,
    Cancelled,
    Completed,
    Current,
    Decision,
    ErrorInfo,
    Expired,
    Failed,
    Met,
    Received,
    Rejected,
    Skipped,
    TimedOut,
    Winner,
)
from flowfabric.sdk.sagas import Undo, saga
from flowfabric.sdk.signals import Delivery, Signal
from flowfabric.sdk.sleeping import poll, sleep, sleep_until
from flowfabric.sdk.steps import step
from flowfabric.sdk.tasks import Call, Task
from flowfabric.sdk.waits import wait_for, wait_signal

if TYPE_CHECKING:
    # With these comes the whole engine; `flowfabric` fetches each of them by itself.
    from flowfabric.engine.connecting import connect
    from flowfabric.engine.engine import Engine
    from flowfabric.worker import Worker

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
