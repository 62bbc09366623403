"""resume and close_waitpoint: an operator ends a wait. Duties end waits whose time has passed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

from flowfabric.core.errors import NotFound
from flowfabric.core.executions.decision import Decision
from flowfabric.core.executions.outcomes import AlreadySatisfied, Resumed, WaitpointClosed
from flowfabric.core.executions.requests import AuditInfo
from flowfabric.core.executions.states import TERMINAL
from flowfabric.core.waits.records import WaitChanges, Waitpoint
from flowfabric.core.waits.resume import (
    decide_close_waitpoint,
    decide_resume,
    decide_suspension_timeout,
    decide_waitpoint_expiry,
)
from flowfabric.core.waits.signals import SignalRequest
from flowfabric.ops.apply import write, write_one
from flowfabric.ops.locks import lock, lock_free_to_end
from flowfabric.ops.operation import operation
from flowfabric.ops.operator.hold import OperatorRequest
from flowfabric.ops.waits.load import decide_signals, load_open_waits
from flowfabric.store.executions import WriteSet
from flowfabric.store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """An operator's request to end the open wait of an execution, or only the suspension `suspension_id` if given."""

    execution_id: UUID
    suspension_id: UUID | None
    delay: timedelta | None
    audit: AuditInfo


def _names_a_suspension(request: ResumeRequest) -> bool:
    """Return True if a repeat cannot end a later wait."""
    return request.suspension_id is not None


@operation(can_repeat=_names_a_suspension)
async def resume(tx: Transaction, namespace: str, request: ResumeRequest) -> Resumed | AlreadySatisfied:
    """End the open suspension. If the request names a suspension that is no longer open, change nothing."""
    id_, suspension_id = request.execution_id, request.suspension_id
    execution, now = await lock(tx, namespace, id_)
    wait = (await load_open_waits(tx, [execution])).get(id_)
    if suspension_id is not None and (wait is None or wait.suspension.id != suspension_id):
        return AlreadySatisfied("suspension_closed")
    return await write_one(tx, decide_resume(execution, wait, request.delay, request.audit, now))


@operation()
async def close_waitpoint(tx: Transaction, namespace: str, request: OperatorRequest) -> WaitpointClosed:
    """Close one waitpoint. An execution that also waits at other waitpoints keeps waiting."""
    id_ = request.id
    waitpoint = (await tx.waits.waitpoints([id_])).get(id_)
    executions = await tx.executions.lock(namespace, [waitpoint.execution_id]) if waitpoint else {}
    if not executions:
        raise NotFound("waitpoint_not_found", f"there is no waitpoint {id_} in this namespace", waitpoint_id=id_)
    [execution] = executions.values()
    # The waitpoint may have been closed while this transaction waited for the lock.
    waitpoint = (await tx.waits.waitpoints([id_])).get(id_)
    return await write_one(tx, decide_close_waitpoint(execution, waitpoint, request.audit, await tx.now()))


# Duties on waits: suspensions past their timeout, waitpoints past their expiry, due timers.


async def time_out_suspensions(tx: Transaction, ids: Sequence[UUID]) -> list[Decision[Any]]:
    """Apply the timeout rule of each suspension past its timeout, and return the decisions."""
    executions = await lock_free_to_end(tx, ids)
    now = await tx.now()
    waits = await load_open_waits(tx, list(executions.values()))
    timeouts = (decide_suspension_timeout(execution, waits.get(id_), now) for id_, execution in executions.items())
    decisions = [decision for decision in timeouts if decision is not None]
    await write(tx, decisions)
    return decisions


async def expire_waitpoints(tx: Transaction, ids: Sequence[UUID]) -> int:
    """Close pending waitpoints past their expiry, and return how many were closed."""
    executions = await tx.executions.lock_free(ids)
    now = await tx.now()
    waitpoints = await tx.waits.open_waitpoints(list(executions)) if executions else {}
    expiries = [decide_waitpoint_expiry(waitpoint, now) for group in waitpoints.values() for waitpoint in group]
    expired = tuple(waitpoint for waitpoint in expiries if waitpoint is not None)
    await tx.write(WriteSet(waits=[WaitChanges(moved=expired)]))
    return len(expired)


async def fire_timers(tx: Transaction, ids: Sequence[UUID]) -> int:
    """Deliver the signal of the first due timer of each execution, and return the number of signals."""
    executions = await tx.executions.lock_free(ids)
    now = await tx.now()
    waitpoints = await tx.waits.open_waitpoints(list(executions)) if executions else {}
    due = {id_: timer for id_, group in waitpoints.items() if (timer := _first_due(group, now)) is not None}
    alive = [execution for id_, execution in executions.items() if id_ in due and execution.state not in TERMINAL]
    signals = [(execution, due[execution.id], _timer_signal(due[execution.id], now)) for execution in alive]
    decisions = await decide_signals(tx, signals, now)
    await write(tx, decisions)
    return len(decisions)


def _first_due(waitpoints: Sequence[Waitpoint], now: datetime) -> Waitpoint | None:
    timers = [waitpoint for waitpoint in waitpoints if waitpoint.fires_at is not None and waitpoint.fires_at <= now]
    return min(timers, key=lambda timer: (timer.fires_at, timer.id), default=None)


def _timer_signal(waitpoint: Waitpoint, now: datetime) -> SignalRequest:
    """Return the signal of a due timer. Its id is derived from the timer, so the signal is stored at most once."""
    return SignalRequest(
        id=uuid5(waitpoint.id, "timer"),
        name="timer",
        category="system",
        source_type="system",
        source_identity="timer",
        created_at=now,
        by_engine=True,
        is_system=True,
    )
