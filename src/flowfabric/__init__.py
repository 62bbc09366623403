"""FlowFabric: a durable execution engine that a Python program embeds, on SQLite or PostgreSQL."""

from flowfabric.core.errors import Conflict, FlowFabricError, InvalidRequest, NotFound, Refused, Unavailable
from flowfabric.core.outcomes import (
    AlreadySatisfied,
    Created,
    Delayed,
    Duplicate,
    Ended,
    Held,
    Lease,
    PriorityChanged,
    Released,
    Renewed,
    Replayed,
    RetryScheduled,
    Revoked,
    Submitted,
    Unheld,
)  # fmt: skip
from flowfabric.core.policy import Backoff, BackoffKind, OnAttemptTimeout, OnLeaseLoss, Policy
from flowfabric.core.records import Attempt, AttemptOutcome, Event, Fence, Grant, RecordedStep, WorkerId
from flowfabric.core.requests import Step, StepStatus, Submission
from flowfabric.core.retry import FailureClass
from flowfabric.core.states import (
    AttemptState,
    BlockingReason,
    Eligibility,
    LifecyclePhase,
    PublicState,
    State,
    StateVector,
    TerminalOutcome,
)  # fmt: skip
from flowfabric.core.views import Count, Description, Failure, LeaseView, Outcome, Page, Summary
from flowfabric.engine import Engine, connect
from flowfabric.reconcilers.duty import Tick
from flowfabric.store.routing import LaneState

__all__ = [
    "AlreadySatisfied", "Attempt", "AttemptOutcome", "AttemptState", "Backoff", "BackoffKind", "BlockingReason",
    "Conflict", "Count", "Created", "Delayed", "Description", "Duplicate", "Eligibility", "Ended", "Engine", "Event",
    "Failure", "FailureClass", "Fence", "FlowFabricError", "Grant", "Held", "InvalidRequest", "LaneState", "Lease",
    "LeaseView", "LifecyclePhase", "NotFound", "OnAttemptTimeout", "OnLeaseLoss", "Outcome", "Page", "Policy",
    "PriorityChanged", "PublicState", "RecordedStep", "Refused", "Released", "Renewed", "Replayed", "RetryScheduled",
    "Revoked", "State", "StateVector", "Step", "StepStatus", "Submission", "Submitted", "Summary", "TerminalOutcome",
    "Tick", "Unavailable", "Unheld", "WorkerId", "connect",
]  # fmt: skip
