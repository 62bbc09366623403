"""The one place where decisions become rows: execution, ended attempt and event, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowfabric.core.decisions import Decision
from flowfabric.store.transaction import Transaction


async def write(tx: Transaction, decisions: Sequence[Decision[Any]]) -> None:
    """Writes what the decisions say; those that change nothing write nothing. Their executions must be locked."""
    changes = [(item.before, item.after) for item in decisions if item.after is not None]
    attempts = [item.attempt for item in decisions if item.attempt is not None]
    events = [item.event for item in decisions if item.event is not None]
    if changes:
        await tx.executions.save(changes)
    if attempts:
        await tx.attempts.append(attempts)
    if events:
        await tx.events.append(events)
