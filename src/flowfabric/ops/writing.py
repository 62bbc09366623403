"""The one place where decisions become rows: execution, ended attempt, events and waits, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowfabric.core.decisions import Decision
from flowfabric.core.records import Execution
from flowfabric.core.states import TERMINAL
from flowfabric.store.transaction import Transaction, Written


async def write(tx: Transaction, decisions: Sequence[Decision[Any]]) -> None:
    """Writes what the decisions say; those that change nothing write nothing. Their executions must be locked."""
    changes = [(item.before, item.after) for item in decisions if item.after is not None]
    attempts = [item.attempt for item in decisions if item.attempt is not None]
    events = [event for item in decisions for event in (item.event, item.also) if event is not None]
    waits = [item.waits for item in decisions if item.waits is not None]
    await tx.write(Written(executions=changes, attempts=attempts, events=events, waits=waits))
    await _close_what_ended(tx, changes)


async def _close_what_ended(tx: Transaction, changes: Sequence[tuple[Execution, Execution]]) -> None:
    """Nothing stays open on an execution that has ended, however it did."""
    ended = [after for before, after in changes if after.state in TERMINAL and not before.plain]
    if ended:
        await tx.waits.end([execution.id for execution in ended], ended[0].changed_at)
