"""The ports for what is kept about an execution beside its row: attempts, steps and events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

from flowfabric.core.records import Attempt, Event, Execution, RecordedStep
from flowfabric.core.requests import Step


class Attempts(Protocol):
    """Attempts that have ended."""

    async def append(self, attempts: Sequence[Attempt]) -> None:
        """Adds ended attempts to the history."""

    async def of(self, execution_id: UUID) -> list[Attempt]:
        """All ended attempts of an execution, oldest first."""

    async def at(self, execution_id: UUID, attempt_index: int) -> Attempt | None:
        """One ended attempt."""


class Steps(Protocol):
    """The journal of checkpointed steps."""

    async def record(self, entries: Sequence[tuple[Execution, Sequence[Step]]], now: datetime) -> set[tuple[UUID, str]]:
        """Records steps of locked executions after their `step_seq`; answers the names that were, each with its
        execution: a final step with other content stays as it is and is left out."""

    async def count(self, execution_id: UUID) -> int:
        """How many steps answer at present."""

    async def of(self, execution_id: UUID, after: int, limit: int) -> list[RecordedStep]:
        """The steps that answer, in the order they were recorded."""

    async def named(self, execution_id: UUID, name: str) -> RecordedStep | None:
        """The step of that name that answers."""

    async def clear(self, execution_id: UUID) -> None:
        """Removes all steps, struck out or not."""

    async def strike(self, execution_id: UUID, seq: int, generation: int) -> None:
        """Strikes out that step and all later ones: they stay readable in the table but answer no more."""


class Events(Protocol):
    """History and outbox."""

    async def append(self, events: Sequence[Event]) -> None:
        """Adds events, in the transaction that makes them true."""

    async def last_named(self, execution_id: UUID, family: str, name: str) -> Event | None:
        """The newest event of an execution with this name."""

    async def history(self, namespace: str, execution_id: UUID, after: int, limit: int) -> list[Event]:
        """The events of an execution with a version above `after`, in order."""
