"""What the reconcilers do about waits: suspensions past their timeout, waitpoints past their time, due timers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID, uuid5

from flowfabric.core.resuming import decide_suspension_timeout, decide_waitpoint_expiry
from flowfabric.core.signalling import SignalRequest, decide_signal
from flowfabric.core.states import TERMINAL
from flowfabric.core.waits import WaitChanges, Waitpoint
from flowfabric.ops.locking import lock_free_to_end
from flowfabric.ops.waiting import open_waits
from flowfabric.ops.writing import write
from flowfabric.store.transaction import Transaction, Written


async def time_out_suspensions(tx: Transaction, ids: Sequence[UUID]) -> int:
    """How many suspensions were ended, resumed or escalated because their time is over."""
    found = await lock_free_to_end(tx, ids)
    now = await tx.now()
    waits = await open_waits(tx, list(found.values()))
    decided = (decide_suspension_timeout(execution, waits.get(id_), now) for id_, execution in found.items())
    decisions = [decision for decision in decided if decision is not None]
    await write(tx, decisions)
    return len(decisions)


async def expire_waitpoints(tx: Transaction, ids: Sequence[UUID]) -> int:
    """How many pending waitpoints were closed because their time is over."""
    found = await tx.executions.lock_free(ids)
    now = await tx.now()
    waitpoints = await tx.waits.open_waitpoints(list(found)) if found else {}
    expired = [decide_waitpoint_expiry(item, now) for group in waitpoints.values() for item in group]
    moved = tuple(item for item in expired if item is not None)
    await tx.write(Written(waits=[WaitChanges(moved=moved)]))
    return len(moved)


async def fire_timers(tx: Transaction, ids: Sequence[UUID]) -> int:
    """How many timers delivered their signal: the first that is due of each execution."""
    found = await tx.executions.lock_free(ids)
    now = await tx.now()
    waitpoints = await tx.waits.open_waitpoints(list(found)) if found else {}
    due = {id_: timer for id_, group in waitpoints.items() if (timer := _first_due(group, now)) is not None}
    alive = [execution for id_, execution in found.items() if id_ in due and execution.state not in TERMINAL]
    waits = await open_waits(tx, alive)
    counting = (await tx.waits.heard(list(waits))).counting if waits else {}
    decisions = [
        decide_signal(item, due[item.id], waits.get(item.id), counting.get(item.id, ()), _timer(due[item.id], now), now)
        for item in alive
    ]
    await write(tx, decisions)
    return len(decisions)


def _first_due(waitpoints: Sequence[Waitpoint], now: datetime) -> Waitpoint | None:
    timers = [item for item in waitpoints if item.fires_at is not None and item.fires_at <= now]
    return min(timers, key=lambda item: (item.fires_at, item.id), default=None)


def _timer(waitpoint: Waitpoint, now: datetime) -> SignalRequest:
    """The engine's own signal that the time has come; its id follows from the timer, so there is one."""
    return SignalRequest(
        id=uuid5(waitpoint.id, "timer"), name="timer", payload=b"", encoding="json", category="system",
        source_type="system", source_identity="timer", correlation=None, key=None, created_at=now, resume_delay=None,
        by_engine=True, is_system=True,
    )  # fmt: skip
