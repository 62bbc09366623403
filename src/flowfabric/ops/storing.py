"""Decisions as rows: execution, ended attempt, events and waits. Whoever may end an execution uses `ops/writing.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowfabric.core.decisions import Decision
from flowfabric.core.records import Execution
from flowfabric.store.transaction import Transaction, Written


async def store(tx: Transaction, decisions: Sequence[Decision[Any]]) -> list[tuple[Execution, Execution]]:
    """Writes what the decisions say, and answers what they changed; those that change nothing write nothing."""
    written = written_by(decisions)
    await tx.write(written)
    return list(written.executions)


def written_by(decisions: Sequence[Decision[Any]]) -> Written:
    """What the decisions write."""
    return Written(
        executions=[(item.before, item.after) for item in decisions if item.after is not None],
        attempts=[item.attempt for item in decisions if item.attempt is not None],
        events=[event for item in decisions for event in (item.event, item.also) if event is not None],
        waits=[item.waits for item in decisions if item.waits is not None],
    )
