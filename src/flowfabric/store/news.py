"""What a commit changed, as far as somebody may be waiting for it. News are hints: all of them may be lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol
from uuid import UUID

from flowfabric.core.records import Event
from flowfabric.core.requests import Completion
from flowfabric.core.states import State
from flowfabric.core.views import Glance, Outcome


@dataclass(slots=True)
class News:
    """Lanes that have work, namespaces that have events, executions and flows that ended, and when something is next
    due. `many_ended` says that more ended than are named; `anything` that the teller does not know what happened. Of
    what completed in this process, `completed` says how; no other process is told."""

    lanes: set[tuple[str, str]] = field(default_factory=set)
    namespaces: set[str] = field(default_factory=set)
    ended: set[UUID] = field(default_factory=set)
    completed: dict[UUID, Glance] = field(default_factory=dict)
    due: datetime | None = None
    many_ended: bool = False
    anything: bool = False

    def note_work(self, namespace: str, lane: str) -> None:
        """Somebody who claims on the lane may find work."""
        self.lanes.add((namespace, lane))

    def note_ended(self, namespace: str, ids: Iterable[UUID]) -> None:
        """Executions have ended, of which there are also events."""
        self.namespaces.add(namespace)
        self.ended.update(ids)

    def note_completed(self, namespace: str, items: Iterable[Completion], ended_at: datetime) -> None:
        """The same of these, with what they left."""
        found = {}
        for item in items:
            outcome = Outcome(
                state=State.COMPLETED, result=item.result, encoding=item.encoding, failure=None, cancelled_by=None,
                cancel_reason=None, ended_at=ended_at,
            )  # fmt: skip
            found[item.fence.execution_id] = Glance(State.COMPLETED, None, outcome)
        self.completed |= found
        self.note_ended(namespace, found)

    def note_due(self, due: datetime) -> None:
        """Something is due then."""
        if self.due is None or due < self.due:
            self.due = due

    def note_events(self, events: Iterable[Event]) -> None:
        """What follows from events alone."""
        for event in events:
            self.namespaces.add(event.namespace)
            if event.state is State.WAITING or event.name == "lane_resumed":
                self.lanes.add((event.namespace, event.lane))
            if event.family == "completion" and event.execution_id is not None:
                self.ended.add(event.execution_id)
            if event.family == "flow" and event.name == "finished" and event.flow_id is not None:
                self.ended.add(event.flow_id)

    def merge(self, other: News) -> None:
        """These and the other ones."""
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


Tell = Callable[[News], None]


class Ear(Protocol):
    """How news of other processes are heard."""

    async def listen(self, tell: Tell, alive: Callable[[datetime | None], None]) -> None:
        """Listens until the line breaks, which raises. `alive` is called whenever the line has proved to work, with the
        store's time if it came along; what happened before the first call may have been missed."""


class Telling(Protocol):
    """The part of a store that hands on news."""

    def on_commit(self, tell: Tell) -> None:
        """Calls back after every commit of this store that somebody may be waiting for, in whatever thread."""

    @property
    def can_announce(self) -> bool:
        """False if other processes notice by themselves, or never."""

    async def announce(self, news: News) -> None:
        """Tells other processes."""

    def ear(self) -> Ear | None:
        """How to hear of other processes; None if there is no way, and one has to look."""
