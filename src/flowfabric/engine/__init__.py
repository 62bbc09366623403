"""The engine: `connect` opens a store and returns an `Engine` with groups of calls, such as `executions` and `leases`.

The durable functions of `flowfabric` are built on this API. Calls take and return records, and every write of a worker
is fenced: it fails if the worker has lost its lease.
"""

from flowfabric.core.errors import Conflict, FlowFabricError, InvalidRequest, NotFound, Refused, Unavailable
from flowfabric.core.events.cursor import Start
from flowfabric.core.events.subscribers import EventFamily, Subscriber
from flowfabric.core.executions.attempts import StepRetry
from flowfabric.core.executions.explain import Explanation
from flowfabric.core.executions.outcomes import (
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
)
from flowfabric.core.executions.records import (
    Attempt,
    AttemptOutcome,
    Event,
    Fence,
    Grant,
    RecordedStep,
    Resumption,
    WorkerId,
)
from flowfabric.core.executions.requests import Step, StepStatus, Submission
from flowfabric.core.executions.states import (
    AttemptState,
    BlockingReason,
    Eligibility,
    LifecyclePhase,
    PublicState,
    State,
    StateVector,
    TerminalOutcome,
)
from flowfabric.core.executions.steps import StepError, StepView, view_step
from flowfabric.core.executions.views import (
    ApproximateCount,
    Backlog,
    Description,
    Failure,
    HeldWork,
    LeaseView,
    Outcome,
    Page,
    Summary,
    SuspendedView,
    WaitpointView,
)
from flowfabric.core.flows.graph import (
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
from flowfabric.core.flows.outcomes import (
    CancelPending,
    CancelScheduled,
    ChildrenReady,
    EdgeAdded,
    FlowAlreadyTerminal,
    FlowCancelled,
    FlowCreated,
    FlowDescription,
    FlowDuplicate,
    FlowPage,
    FlowReplayed,
    FlowSummary,
    Input,
    MemberAdded,
    MemberDuplicate,
    Sealed,
    WaitingForChildren,
)
from flowfabric.core.flows.records import CancelPolicy, EdgeGroup, EdgeState, FlowState, GroupState, StoredEdge
from flowfabric.core.lanes import LaneInfo, LanePage, LaneState
from flowfabric.core.policy import Backoff, BackoffKind, FailureClass, OnAttemptTimeout, OnLeaseLoss, Policy
from flowfabric.core.tokens.key_ring import AlreadySeeded, KeyState, KeyView, Rotated, Seeded, Unchanged
from flowfabric.core.tokens.secret import Secret
from flowfabric.core.waits.bindings import Child, NewWaitpoint, PendingWaitpoint, StandingWaitpoint, Timer
from flowfabric.core.waits.condition_json import from_json as condition_from_json
from flowfabric.core.waits.condition_json import to_json as condition_to_json
from flowfabric.core.waits.conditions import (
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
from flowfabric.core.waits.decisions import ApprovalDecision, Decided, WaitEnd, WaitpointDescription
from flowfabric.core.waits.evaluate import ApprovalProgress, Counted, missing_signals
from flowfabric.core.waits.prompts import ApprovalPrompt
from flowfabric.core.waits.records import (
    Effect,
    OnTimeout,
    StoredSignal,
    SuspensionReason,
    Trigger,
    UnusedWaitpoints,
    WaitpointKind,
    WaitpointState,
)
from flowfabric.core.waits.snapshot import Override, WaitSnapshot
from flowfabric.core.workers import MarkedDead, Registered, WorkerInfo, WorkerPage
from flowfabric.engine.claims import WorkWatch
from flowfabric.engine.engine import Engine
from flowfabric.engine.events import EventsStatus
from flowfabric.engine.opener import StoreOptions, connect
from flowfabric.engine.subscription import Subscription
from flowfabric.notify.listener import ListenerStatus
from flowfabric.reconcilers.duty import Tick
from flowfabric.store.ports import StoreInfo

__all__ = [
    "Accepted", "AllOf", "AlreadySatisfied", "AlreadySeeded", "AnyOf", "AnySignal", "ApprovalDecision",
    "ApprovalProgress", "ApprovalPrompt", "ApproximateCount", "Attempt", "AttemptOutcome", "AttemptState", "Backlog",
    "Backoff", "BackoffKind", "BlockingReason", "ByName", "CancelPending", "CancelPolicy", "CancelScheduled", "Child",
    "ChildSubmission", "ChildrenReady", "Condition", "Conflict", "Continued", "Count", "Counted", "Created", "Decided",
    "Delayed", "Description", "Duplicate", "DuplicateSignal", "Edge", "EdgeAdded", "EdgeGroup", "EdgeKind", "EdgeState",
    "Effect", "Eligibility", "Ended", "Engine", "Event", "EventFamily", "EventsStatus", "Explanation", "Failure",
    "FailureClass", "Fence", "FlowAlreadyTerminal", "FlowCancelled", "FlowCreated", "FlowDescription", "FlowDuplicate",
    "FlowFabricError", "FlowPage", "FlowReplayed", "FlowState", "FlowSummary", "Grant", "Graph", "GroupState", "Held",
    "HeldWork", "Input", "InvalidRequest", "Join", "JoinKind", "KeyState", "KeyView", "LaneInfo", "LanePage",
    "LaneState", "Lease", "LeaseView", "LifecyclePhase", "ListenerStatus", "MarkedDead", "Member", "MemberAdded",
    "MemberDuplicate", "NewWaitpoint", "NotFound", "OnAttemptTimeout", "OnLeaseLoss", "OnTimeout", "OpenWaitpoint",
    "OperatorOnly", "Outcome", "Override", "Page", "PendingWaitpoint", "Policy", "PriorityChanged", "PublicState",
    "RecordedStep", "Refused", "Registered", "Released", "Renewed", "Replayed", "Resumed", "Resumption",
    "RetryScheduled", "Revoked", "Rotated", "Satisfied", "Sealed", "Secret", "Seeded", "Siblings", "Single",
    "StandingWaitpoint", "Start", "State", "StateVector", "Step", "StepError", "StepRetry", "StepStatus", "StepView",
    "StoreInfo", "StoreOptions", "StoredEdge", "StoredSignal", "Submission", "Submitted", "Subscriber", "Subscription",
    "Summary", "Suspended", "SuspendedView", "SuspensionReason", "TerminalOutcome", "Tick", "TimeoutOnly", "Timer",
    "Trigger", "Unavailable", "Unchanged", "Unheld", "UnusedWaitpoints", "WaitEnd", "WaitSnapshot",
    "WaitingForChildren", "WaitpointClosed", "WaitpointDescription", "WaitpointKind", "WaitpointState", "WaitpointView",
    "WorkWatch", "WorkerId", "WorkerInfo", "WorkerPage", "all_of", "any_of", "condition_from_json", "condition_to_json",
    "connect", "missing_signals", "quorum", "view_step",
]  # fmt: skip
