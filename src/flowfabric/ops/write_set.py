"""Turn decisions into rows, and write them. Code that may end an execution must use `ops/apply.py` instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowfabric.core.executions.decision import Decision
from flowfabric.core.executions.records import Execution
from flowfabric.store.executions import WriteSet
from flowfabric.store.transaction import Transaction


async def store(tx: Transaction, decisions: Sequence[Decision[Any]]) -> list[tuple[Execution, Execution]]:
    """Write the rows of decisions. Return each changed execution as a pair: before and after the change."""
    write_set = make_write_set(decisions)
    await tx.write(write_set)
    return list(write_set.executions)


def make_write_set(decisions: Sequence[Decision[Any]]) -> WriteSet:
    """Return the rows to write for these decisions: executions, ended attempts, events and waits."""
    return WriteSet(
        executions=[(decision.before, decision.after) for decision in decisions if decision.after is not None],
        attempts=[decision.attempt for decision in decisions if decision.attempt is not None],
        events=[
            event for decision in decisions for event in (decision.event, decision.extra_event) if event is not None
        ],
        waits=[decision.waits for decision in decisions if decision.waits is not None],
    )
