"""The ports for reading events in order, for named subscribers, and for trimming."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

from flowfabric.core.positions import Position
from flowfabric.core.subscribing import EventFilter, EventPage, OutboxState, Subscriber
from flowfabric.core.trimming import Buried


class Outbox(Protocol):
    """Events in an order in which none is missed, however late its transaction commits."""

    async def read(self, wanted: EventFilter, after: Position, scan: int) -> EventPage:
        """The wanted ones among the next `scan` events; one statement."""

    async def state(self) -> OutboxState:
        """Where the present is, and what was trimmed."""


class Subscribers(Protocol):
    """Named subscribers."""

    async def add(self, namespace: str, name: str, position: Position, now: datetime) -> None:
        """Makes one that stands there, unless there is one of that name."""

    async def lock(self, namespace: str, name: str) -> Subscriber | None:
        """The subscriber, locked."""

    async def hold(self, namespace: str, name: str, holder: UUID, now: datetime, until: datetime) -> None:
        """Gives a locked one to a holder."""

    async def commit(self, namespace: str, name: str, holder: UUID, position: Position, until: datetime) -> bool:
        """Moves one on and holds it longer, if this is still its holder."""

    async def release(self, namespace: str, name: str, holder: UUID) -> None:
        """Lets others hold it, if this is still its holder."""

    async def forget(self, namespace: str, name: str) -> bool:
        """Removes one; False if there was none."""

    async def page(self, namespace: str, after: str, limit: int) -> list[Subscriber]:
        """Those with a later name, by name."""

    async def expire(self, now: datetime, silent_since: datetime) -> list[tuple[str, str]]:
        """Marks those that have been silent since then; their namespaces and names."""


class Trimming(Protocol):
    """What is needed to remove events that nobody waits for."""

    async def lock_free(self, ids: Sequence[UUID], now: datetime) -> list[Buried]:
        """Those of these executions that are gone and whose events may go by their time, locked; leaves out what others
        have locked."""

    async def slowest(self) -> Position | None:
        """How far the slowest named subscriber is; None if there is none."""

    async def postpone(self, ids: Sequence[UUID], trim_at: datetime) -> None:
        """Looks at these again at that time."""

    async def remove(self, up_to: Sequence[tuple[UUID, int]]) -> None:
        """Removes the events of each execution up to that version."""

    async def forget(self, ids: Sequence[UUID]) -> None:
        """Removes all events of executions that are gone, and that they were ever there."""

    async def apart(self, until: datetime, limit: int) -> list[Position]:
        """Events of no execution up to that time, oldest first."""

    async def remove_apart(self, positions: Sequence[Position]) -> None:
        """Removes these events."""

    async def note(self, position: Position) -> None:
        """Remembers the last position that was removed."""
