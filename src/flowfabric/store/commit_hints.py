"""Hints about the changes of a commit, for callers that wait for such changes. Every hint may be lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from flowfabric.core.executions.records import Event, Execution
from flowfabric.core.executions.requests import Completion
from flowfabric.core.executions.states import State
from flowfabric.core.executions.views import Outcome, StateSnapshot


@dataclass(slots=True)
class CommitHints:
    """The changes of a commit: lanes with work, namespaces with events, ended executions and flows, the next due time.

    `instances` names the workers that must look at their leases, because another process ended one of their leases or
    requested a cancel. `many_ended` means that more executions ended than `ended` names. `anything` means that anything
    may have changed.
    `completed` holds outcomes for this process and is not sent to other processes.
    """

    lanes: set[tuple[str, str]] = field(default_factory=set)
    namespaces: set[str] = field(default_factory=set)
    ended: set[UUID] = field(default_factory=set)
    instances: set[str] = field(default_factory=set)
    completed: dict[UUID, StateSnapshot] = field(default_factory=dict)
    due: datetime | None = None
    many_ended: bool = False
    anything: bool = False

    def note_work(self, namespace: str, lane: str) -> None:
        """Note that a claim on this lane may find work."""
        self.lanes.add((namespace, lane))

    def note_ended(self, namespace: str, ids: Iterable[UUID]) -> None:
        """Note that executions ended and left events."""
        self.namespaces.add(namespace)
        self.ended.update(ids)

    def note_completed(self, namespace: str, completions: Iterable[Completion], ended_at: datetime) -> None:
        """Note that executions completed, with their outcomes."""
        snapshots = {}
        for completion in completions:
            outcome = Outcome(
                state=State.COMPLETED,
                result=completion.result,
                encoding=completion.encoding,
                failure=None,
                cancelled_by=None,
                cancel_reason=None,
                ended_at=ended_at,
            )
            snapshots[completion.fence.execution_id] = StateSnapshot(State.COMPLETED, None, outcome)
        self.completed |= snapshots
        self.note_ended(namespace, snapshots)

    def note_due(self, due: datetime) -> None:
        """Note that a duty becomes due at this time. Only the earliest time is kept."""
        if self.due is None or due < self.due:
            self.due = due

    def note_interrupted(self, changes: Iterable[tuple[Execution, Execution]]) -> None:
        """Note the workers whose lease was ended by others, or whose execution was asked to stop.

        A worker that gives up its lease itself leaves a digest of its request, and needs no hint.
        """
        for before, after in changes:
            if before.lease is None:
                continue
            is_taken = after.lease is None and after.former is not None and after.former.digest is None
            if is_taken or after.cancel_request != before.cancel_request:
                self.instances.add(before.lease.worker.instance)

    def note_events(self, events: Iterable[Event]) -> None:
        """Add the hints that follow from events."""
        for event in events:
            self.namespaces.add(event.namespace)
            if event.state is State.WAITING or event.name == "lane_resumed":
                self.lanes.add((event.namespace, event.lane))
            if event.family == "completion" and event.execution_id is not None:
                self.ended.add(event.execution_id)
            if event.family == "flow" and event.name == "finished" and event.flow_id is not None:
                self.ended.add(event.flow_id)

    def merge(self, other: CommitHints) -> None:
        """Add the hints of another commit, except outcomes."""
        self.lanes |= other.lanes
        self.namespaces |= other.namespaces
        self.ended |= other.ended
        self.instances |= other.instances
        self.many_ended |= other.many_ended
        self.anything |= other.anything
        if other.due is not None:
            self.note_due(other.due)

    def __bool__(self) -> bool:
        named = self.lanes or self.namespaces or self.ended or self.instances or self.due
        return bool(named or self.many_ended or self.anything)


HintHandler = Callable[[CommitHints], None]
