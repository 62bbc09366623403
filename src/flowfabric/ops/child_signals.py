"""Telling those that wait by a condition, parents or others: the end of an execution is a signal, named after the
outcome, in the transaction that ends it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

from flowfabric.core.child_ends import child_signal
from flowfabric.core.records import Execution
from flowfabric.core.signalling import decide_signal
from flowfabric.core.states import State
from flowfabric.core.waits import Waitpoint
from flowfabric.ops.storing import store
from flowfabric.ops.waiting import open_waits
from flowfabric.store.transaction import Transaction

_NOBODY: Mapping[UUID, UUID | None] = {}


async def signal_waiting(
    tx: Transaction, ended: Mapping[UUID, State], now: datetime, parents: Mapping[UUID, UUID | None] = _NOBODY
) -> None:
    """Delivers to every open waitpoint that stands for one of these executions. They are locked, and their flow is."""
    left = await tx.flows.members.awaited(list(ended)) if ended else []
    while left:
        # One signal for each parent at a time: the first may end its wait.
        turn = {waitpoint.execution_id: waitpoint for waitpoint in reversed(left)}
        waiting = await tx.executions.lock(None, list(turn))
        done = {waitpoint.id for waitpoint in turn.values()}
        await _deliver(tx, await _as_they_are(tx, turn, parents), waiting, ended, now)
        rest = [waitpoint.id for waitpoint in left if waitpoint.id not in done]
        left = _still_open(await tx.waits.waitpoints(rest)) if rest else []


async def _as_they_are(
    tx: Transaction, turn: Mapping[UUID, Waitpoint], parents: Mapping[UUID, UUID | None]
) -> Mapping[UUID, Waitpoint]:
    """The waitpoints, read again under the lock of who waits: a stranger may have begun to wait since they were found,
    while the flow's lock keeps parents from it."""
    assert all(waitpoint.child_id is not None for waitpoint in turn.values()), "they were found by their child"
    strangers = [item.id for id_, item in turn.items() if item.child_id and parents.get(item.child_id) != id_]
    if not strangers:
        return turn
    now_there = await tx.waits.waitpoints(strangers)
    latest = {id_: now_there.get(item.id, item) for id_, item in turn.items()}
    return {id_: item for id_, item in latest.items() if item.closed_at is None}


async def _deliver(
    tx: Transaction, turn: Mapping[UUID, Waitpoint], waiting: Mapping[UUID, Execution], ended: Mapping[UUID, State],
    now: datetime,
) -> None:  # fmt: skip
    alive = [item for item in waiting.values() if item.id in turn and not item.state.is_terminal]
    waits = await open_waits(tx, alive)
    counting = (await tx.waits.heard(list(waits))).counting if waits else {}
    decisions = []
    for execution in alive:
        waitpoint = turn[execution.id]
        assert waitpoint.child_id is not None, "it was found by its child"
        request = child_signal(waitpoint, ended[waitpoint.child_id], now)
        decisions.append(
            decide_signal(execution, waitpoint, waits.get(execution.id), counting.get(execution.id, ()), request, now)
        )
    await store(tx, decisions)


def _still_open(waitpoints: Mapping[UUID, Waitpoint]) -> list[Waitpoint]:
    return sorted((item for item in waitpoints.values() if item.closed_at is None), key=lambda item: item.id)
