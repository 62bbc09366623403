"""What the operations on waits share: reading what hangs on locked executions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from flowfabric.core.records import Execution
from flowfabric.core.resuming import OpenWait
from flowfabric.core.suspending import Room
from flowfabric.core.waits import Signal, Suspension, Waitpoint, WaitpointState
from flowfabric.store.transaction import Transaction

_PAGE = 10_000


async def open_waits(tx: Transaction, executions: Sequence[Execution]) -> dict[UUID, OpenWait]:
    """The open suspension of each execution that has one, with the waitpoints that it has bound."""
    ids = [execution.id for execution in executions if not execution.plain]
    if not ids:
        return {}
    suspensions = await tx.waits.open_suspensions(ids)
    return bound_waits(suspensions, await tx.waits.open_waitpoints(list(suspensions)) if suspensions else {})


def bound_waits(
    suspensions: Mapping[UUID, Suspension], waitpoints: Mapping[UUID, Sequence[Waitpoint]]
) -> dict[UUID, OpenWait]:
    """Open suspensions, with those of the open waitpoints that they have bound."""
    return {
        id_: OpenWait(
            suspension,
            tuple(
                item
                for item in waitpoints.get(id_, ())
                if item.state is WaitpointState.ACTIVE and item.suspension == suspension.number
            ),
        )
        for id_, suspension in suspensions.items()
    }


async def rooms(
    tx: Transaction, found: Mapping[UUID, Sequence[Waitpoint]], bound: Mapping[UUID, Collection[str]]
) -> dict[UUID, Room]:
    """What a new wait finds on each execution: its open waitpoints, and at those that it binds, the signals that no
    wait has used."""
    wanted = [item.id for id_, group in found.items() for item in group if item.key in bound.get(id_, ())]
    unused = await tx.waits.unused(wanted) if wanted else {}
    return {id_: Room({item.key: item for item in group}, unused) for id_, group in found.items()}


async def observed(tx: Transaction, suspension: Suspension, *, include_unmatched: bool = False) -> tuple[Signal, ...]:
    """The signals that belong to a suspension, in order of acceptance. A policy bounds how many there can be."""
    return (await observed_by(tx, [suspension], include_unmatched=include_unmatched))[suspension.execution_id]


async def observed_by(
    tx: Transaction, suspensions: Sequence[Suspension], *, include_unmatched: bool = False
) -> dict[UUID, tuple[Signal, ...]]:
    """The same for one suspension of each of several executions."""
    found: dict[UUID, tuple[Signal, ...]] = {item.execution_id: () for item in suspensions}
    asked = [(item.execution_id, item.number, 0) for item in suspensions]
    while asked:
        pages = await tx.waits.signals(asked, include_unmatched=include_unmatched, limit=_PAGE)
        for id_, page in pages.items():
            found[id_] += tuple(page)
        asked = [(id_, number, found[id_][-1].seq) for id_, number, _ in asked if len(pages.get(id_, ())) == _PAGE]
    return found
