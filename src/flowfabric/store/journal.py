"""Attempts and recorded steps."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from flowfabric.core.executions.records import Attempt, Execution, RecordedStep
from flowfabric.core.executions.requests import Step
from flowfabric.store.rows import attempt_parameters, to_attempt, to_step, to_uuid
from flowfabric.store.session import AggregateStore


class AttemptStore(AggregateStore):
    """Ended attempts."""

    async def append(self, attempts: Sequence[Attempt]) -> None:
        """Add ended attempts to the history."""
        await self._session.write(("append_attempt", [attempt_parameters(attempt) for attempt in attempts]))

    async def list_all(self, execution_id: UUID) -> list[Attempt]:
        """Return all ended attempts of an execution, oldest first."""
        return [to_attempt(row) for row in await self._session.fetch("attempts_of", execution_id=execution_id)]

    async def get(self, execution_id: UUID, attempt_index: int) -> Attempt | None:
        """Return one ended attempt."""
        rows = await self._session.fetch("attempt_at", execution_id=execution_id, attempt_index=attempt_index)
        return to_attempt(rows[0]) if rows else None


class StepStore(AggregateStore):
    """The journal of steps."""

    async def record(
        self, entries: Sequence[tuple[Execution, Sequence[Step]]], now: datetime
    ) -> dict[tuple[UUID, str], int]:
        """Record steps of locked executions, and return their numbers by execution id and name.

        A final step with other content is not overwritten, so it is missing in the result.
        """
        parameters = [
            {
                "execution_id": execution.id,
                "name": step.name,
                "status": step.status,
                "payload": step.payload,
            }
            | {"encoding": step.encoding, "digest": step.digest(), "attempt_index": execution.attempt_index}
            | {"generation": execution.generation, "recorded_at": now}
            for execution, steps in entries
            for step in steps
        ]
        rows = await self._session.fetch_each("record_step", parameters)
        return {(to_uuid(row["execution_id"]), row["name"]): row["seq"] for row in rows}

    async def count(self, execution_id: UUID) -> int:
        """Count the valid steps of an execution."""
        [row] = await self._session.fetch("count_steps", execution_id=execution_id)
        return int(row["count"])

    async def progress(self, execution_id: UUID) -> int:
        """Return a number that grows whenever a run opens a step or ends one."""
        [row] = await self._session.fetch("count_steps", execution_id=execution_id)
        return int(row["count"]) + int(row["ended"])

    async def last_numbers(self, execution_ids: Sequence[UUID]) -> dict[UUID, int]:
        """Return the number of the last step of each execution, or 0 for an execution without steps."""
        rows = await self._session.fetch("last_step_numbers", ids=list(execution_ids)) if execution_ids else []
        return {to_uuid(row["id"]): row["seq"] for row in rows}

    async def list_page(self, execution_id: UUID, after: int, limit: int) -> list[RecordedStep]:
        """Return valid steps in the order in which they were recorded."""
        rows = await self._session.fetch("steps_of", execution_id=execution_id, after=after, limit=limit)
        return [to_step(row) for row in rows]

    async def list_open(self, execution_id: UUID, limit: int) -> list[RecordedStep]:
        """Return valid steps that have not ended, in the order in which they were recorded."""
        return [to_step(row) for row in await self._session.fetch("open_steps", execution_id=execution_id, limit=limit)]

    async def get(self, execution_id: UUID, name: str) -> RecordedStep | None:
        """Return the valid step with this name."""
        rows = await self._session.fetch("step_named", execution_id=execution_id, name=name)
        return to_step(rows[0]) if rows else None

    async def clear(self, execution_id: UUID) -> None:
        """Remove all steps of an execution, including invalidated steps."""
        await self._session.fetch("delete_steps", ids=[execution_id])

    async def strike(self, execution_id: UUID, seq: int, generation: int) -> None:
        """Invalidate step number `seq` and all later steps. The rows stay in the table, but are no longer used."""
        await self._session.fetch("strike_steps", execution_id=execution_id, seq=seq, generation=generation)
