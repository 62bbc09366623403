"""The engine: `connect` opens a store, and the operations are grouped by what they act on.

This is the contract below the durable functions: records in, outcomes out, every write under its fence.
"""

from flowfabric.core.bindings import Child, Fresh, Pending, Standing, Timer
from flowfabric.core.condition_json import from_json as condition_from_json
from flowfabric.core.condition_json import to_json as condition_to_json
from flowfabric.core.conditions import (
    AllOf,
    AnyOf,
    AnySignal,
    ByName,
    Condition,
    Count,
    OperatorOnly,
    Single,
    TimeoutOnly,
)
from flowfabric.core.errors import Conflict, FlowFabricError, InvalidRequest, NotFound, Refused, Unavailable
from flowfabric.core.evaluating import Counted
from flowfabric.core.explaining import Explanation
from flowfabric.core.flow_outcomes import (
    CancelRequested,
    CancelScheduled,
    ChildrenReady,
    EdgeAdded,
    FlowAlreadyCancelled,
    FlowCancelled,
    FlowCreated,
    FlowDescription,
    FlowDuplicate,
    FlowPage,
    FlowSummary,
    Input,
    MemberAdded,
    MemberDuplicate,
    Sealed,
    WaitingForChildren,
)  # fmt: skip
from flowfabric.core.flows import CancelPolicy, EdgeGroup, EdgeState, FlowState, GroupState, StoredEdge
from flowfabric.core.graph import (
    ChildSubmission,
    Edge,
    EdgeKind,
    Graph,
    Join,
    JoinKind,
    Member,
    Siblings,
    all_of,
    any_of,
    quorum,
)
from flowfabric.core.keyring import AlreadySeeded, KeyState, KeyView, Rotated, Seeded, Unchanged
from flowfabric.core.looking import Look, Override
from flowfabric.core.outcomes import (
    Accepted,
    AlreadySatisfied,
    Continued,
    Created,
    Delayed,
    Duplicate,
    DuplicateSignal,
    Ended,
    Held,
    Lease,
    OpenWaitpoint,
    PriorityChanged,
    Released,
    Renewed,
    Replayed,
    Resumed,
    RetryScheduled,
    Revoked,
    Satisfied,
    Submitted,
    Suspended,
    Unheld,
    WaitpointClosed,
)  # fmt: skip
from flowfabric.core.policy import Backoff, BackoffKind, OnAttemptTimeout, OnLeaseLoss, Policy
from flowfabric.core.positions import Start
from flowfabric.core.records import Attempt, AttemptOutcome, Event, Fence, Grant, RecordedStep, Resumption, WorkerId
from flowfabric.core.requests import Step, StepStatus, Submission
from flowfabric.core.retry import FailureClass
from flowfabric.core.secret import Secret
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
from flowfabric.core.subscribing import EventFamily, Subscriber
from flowfabric.core.views import (
    Backlog,
    Description,
    Failure,
    LeaseView,
    Outcome,
    Page,
    Summary,
    SuspendedView,
    Tally,
    WaitpointView,
)
from flowfabric.core.waits import (
    Effect,
    OnTimeout,
    Rest,
    Signal,
    SuspensionReason,
    Trigger,
    WaitpointKind,
    WaitpointState,
)
from flowfabric.core.why_not import why_not
from flowfabric.core.workers import MarkedDead, Registered, Worker
from flowfabric.engine.connecting import StoreOptions, connect
from flowfabric.engine.engine import Engine
from flowfabric.engine.events import EventsStatus
from flowfabric.engine.subscription import Subscription
from flowfabric.engine.watching import WorkWatch
from flowfabric.reconcilers.duty import Tick
from flowfabric.store.facts import StoreFacts
from flowfabric.store.routing import LaneState
from flowfabric.wakeups.listening import ListenerStatus

__all__ = [
    "Accepted", "AllOf", "AlreadySatisfied", "AlreadySeeded", "AnyOf", "AnySignal", "Attempt", "AttemptOutcome",
    "AttemptState", "Backlog", "Backoff", "BackoffKind", "BlockingReason", "ByName", "CancelPolicy", "CancelRequested",
    "CancelScheduled", "Child", "ChildSubmission", "ChildrenReady", "Condition", "Conflict", "Continued", "Count",
    "Counted", "Created", "Delayed", "Description", "Duplicate", "DuplicateSignal", "Edge", "EdgeAdded",
    "EdgeGroup", "EdgeKind", "EdgeState", "Effect", "Eligibility", "Ended", "Engine", "Event", "EventFamily",
    "EventsStatus", "Explanation", "Failure", "FailureClass", "Fence", "FlowAlreadyCancelled", "FlowCancelled",
    "FlowCreated", "FlowDescription", "FlowDuplicate", "FlowFabricError", "FlowPage", "FlowState", "FlowSummary",
    "Fresh", "Grant", "Graph", "GroupState", "Held", "Input", "InvalidRequest", "Join", "JoinKind", "KeyState",
    "KeyView", "LaneState", "Lease", "LeaseView", "LifecyclePhase", "ListenerStatus", "Look", "MarkedDead",
    "Member", "MemberAdded", "MemberDuplicate", "NotFound", "OnAttemptTimeout", "OnLeaseLoss", "OnTimeout",
    "OpenWaitpoint", "OperatorOnly", "Outcome", "Override", "Page", "Pending", "Policy", "PriorityChanged",
    "PublicState", "RecordedStep", "Refused", "Registered", "Released", "Renewed", "Replayed", "Rest", "Resumed",
    "Resumption", "RetryScheduled", "Revoked", "Rotated", "Satisfied", "Sealed", "Secret", "Seeded", "Siblings",
    "Signal", "Single", "Standing", "Start", "State", "StateVector", "Step", "StepStatus", "StoreFacts", "StoreOptions",
    "StoredEdge",
    "Submission", "Submitted", "Subscriber", "Subscription", "Summary", "Suspended", "SuspendedView",
    "SuspensionReason", "Tally", "TerminalOutcome", "Tick", "TimeoutOnly", "Timer", "Trigger", "Unavailable",
    "Unchanged", "Unheld", "WaitingForChildren", "WaitpointClosed", "WaitpointKind", "WaitpointState",
    "WaitpointView", "WorkWatch", "Worker", "WorkerId", "all_of", "any_of", "condition_from_json",
    "condition_to_json", "connect", "quorum", "why_not",
]  # fmt: skip
