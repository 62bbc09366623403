"""Hints about the changes of a commit, for callers that wait for such changes. Every hint may be lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from flowfabric.core.executions.records import Event
from flowfabric.core.executions.requests import Completion
from flowfabric.core.executions.states import State
from flowfabric.core.executions.views import Outcome, StateSnapshot


@dataclass(slots=True)
class CommitHints:
    """The changes of a commit: lanes with work, namespaces with events, ended executions and flows, the next due time.

    `many_ended` means that more executions ended than `ended` names. `anything` means that anything may have changed.
    `completed` holds outcomes for this process and is not sent to other processes.
    """

    lanes: set[tuple[str, str]] = field(default_factory=set)
    namespaces: set[str] = field(default_factory=set)
    ended: set[UUID] = field(default_factory=set)
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
        self.many_ended |= other.many_ended
        self.anything |= other.anything
        if other.due is not None:
            self.note_due(other.due)

    def __bool__(self) -> bool:
        named = self.lanes or self.namespaces or self.ended or self.due
        return bool(named or self.many_ended or self.anything)


HintHandler = Callable[[CommitHints], None]
