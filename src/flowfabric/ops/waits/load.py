"""Reads that the operations on waits share: suspensions, waitpoints and signals of locked executions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypeAlias
from uuid import UUID

from flowfabric.core.executions.decision import Decision
from flowfabric.core.executions.outcomes import Accepted
from flowfabric.core.executions.records import Execution
from flowfabric.core.fast_dataclass import replace
from flowfabric.core.waits.bindings import Bound, StandingWaitpoint
from flowfabric.core.waits.conditions import Condition
from flowfabric.core.waits.evaluate import SignalFacts, signal_limits, unfilled_keys
from flowfabric.core.waits.records import StoredSignal, Suspension, Waitpoint, WaitpointState
from flowfabric.core.waits.resume import OpenWait
from flowfabric.core.waits.signals import SignalRequest, decide_signal
from flowfabric.core.waits.suspend import Suspend, SuspendInputs
from flowfabric.store.records import SignalQueue
from flowfabric.store.transaction import Transaction

_PAGE = 10_000
_Facts: TypeAlias = dict[UUID, tuple[SignalFacts, ...]]


async def load_open_waits(tx: Transaction, executions: Sequence[Execution]) -> dict[UUID, OpenWait]:
    """Return the open suspensions of these executions, each with its bound waitpoints."""
    ids = [execution.id for execution in executions if not execution.is_standalone]
    if not ids:
        return {}
    suspensions = await tx.waits.open_suspensions(ids)
    return join_open_waits(suspensions, await tx.waits.open_waitpoints(list(suspensions)) if suspensions else {})


async def decide_signals(
    tx: Transaction, signals: Sequence[tuple[Execution, Waitpoint, SignalRequest]], now: datetime
) -> list[Decision[Accepted]]:
    """Decide signals that the engine itself sends to locked executions, and return one decision for each execution."""
    waits = await load_open_waits(tx, [execution for execution, _, _ in signals])
    counting = (await tx.waits.received_signals(list(waits))).counting if waits else {}
    return [
        decide_signal(execution, waitpoint, waits.get(execution.id), counting.get(execution.id, ()), request, now)
        for execution, waitpoint, request in signals
    ]


def join_open_waits(
    suspensions: Mapping[UUID, Suspension], waitpoints: Mapping[UUID, Sequence[Waitpoint]]
) -> dict[UUID, OpenWait]:
    """Return each open suspension together with its bound waitpoints."""
    return {
        id_: OpenWait(
            suspension,
            tuple(
                waitpoint
                for waitpoint in waitpoints.get(id_, ())
                if waitpoint.state is WaitpointState.ACTIVE and waitpoint.suspension == suspension.number
            ),
        )
        for id_, suspension in suspensions.items()
    }


async def load_suspend_inputs(
    tx: Transaction, waitpoints: Mapping[UUID, Sequence[Waitpoint]], suspends: Mapping[UUID, Suspend]
) -> dict[UUID, SuspendInputs]:
    """Return the inputs of a new suspension for each execution.

    The inputs are its open waitpoints. For waitpoints that a request in `suspends` binds, they include the signals that
    no wait has used. Of a long queue, these are only as many signals as the condition of the request can count.
    """
    queues, positioned = list[tuple[Condition, SignalQueue]](), list[Waitpoint]()
    for id_, request in suspends.items():
        limits, by_key = signal_limits(request.condition), {binding.key: binding for binding in request.bindings}
        for waitpoint in waitpoints.get(id_, ()):
            binding = by_key.get(waitpoint.key)
            if binding is not None:
                queue = _make_queue(waitpoint, binding, limits.get(waitpoint.key, 1))
                queues.append((request.condition, queue))
            if isinstance(binding, StandingWaitpoint) and binding.after is not None:
                positioned.append(waitpoint)
    unused, observed = await _read_queues(tx, queues, positioned)
    return {
        id_: SuspendInputs({waitpoint.key: waitpoint for waitpoint in group}, unused, observed)
        for id_, group in waitpoints.items()
    }


def _make_queue(waitpoint: Waitpoint, binding: Bound, limit: int) -> SignalQueue:
    if isinstance(binding, StandingWaitpoint) and binding.after is not None:
        return SignalQueue(waitpoint.id, waitpoint.key, binding.after, limit, binding.skipped)
    return SignalQueue(waitpoint.id, waitpoint.key, 0, limit)


async def _read_queues(
    tx: Transaction, queues: Sequence[tuple[Condition, SignalQueue]], positioned: Sequence[Waitpoint]
) -> tuple[_Facts, _Facts]:
    """Return the unused and the observed signals by waitpoint id.

    Read more of a queue only if the signals before did not count, for example because they have the same source.
    """
    unused, observed, pages = dict[UUID, tuple[SignalFacts, ...]](), dict[UUID, tuple[SignalFacts, ...]](), queues
    while pages:
        page, last = await tx.waits.available_signals([queue for _, queue in pages], positioned)
        unused |= {id_: (*unused.get(id_, ()), *signals) for id_, signals in page.items()}
        observed, positioned = observed | last, ()
        pages = [
            (condition, replace(queue, after=more[-1].order, limit=_PAGE, skipped=()))
            for condition, queue in pages
            if len(more := _after(queue, page)) >= queue.limit
            and queue.key in unfilled_keys(condition, _available(condition, queues, unused, observed))
        ]
    return unused, observed


def _after(queue: SignalQueue, page: _Facts) -> list[SignalFacts]:
    return [facts for facts in page.get(queue.waitpoint_id, ()) if facts.order > queue.after]


def _available(
    condition: Condition, queues: Sequence[tuple[Condition, SignalQueue]], unused: _Facts, observed: _Facts
) -> list[SignalFacts]:
    """Return the signals that were read for one condition, and that the worker has not used."""
    return [
        facts
        for owner, queue in queues
        if owner is condition
        for facts in (*unused.get(queue.waitpoint_id, ()), *observed.get(queue.waitpoint_id, ()))
        if facts.order > queue.after or facts.order in queue.skipped
    ]


async def load_signals(
    tx: Transaction, suspension: Suspension, *, include_unmatched: bool = False
) -> tuple[StoredSignal, ...]:
    """Return the signals of a suspension, in order of acceptance. A policy limits the number of signals."""
    return (await load_signals_of(tx, [suspension], include_unmatched=include_unmatched))[suspension.execution_id]


async def load_signals_of(
    tx: Transaction, suspensions: Sequence[Suspension], *, include_unmatched: bool = False
) -> dict[UUID, tuple[StoredSignal, ...]]:
    """Return the signals of several suspensions by execution id, in order of acceptance. Pass one per execution."""
    signals: dict[UUID, tuple[StoredSignal, ...]] = {suspension.execution_id: () for suspension in suspensions}
    queries = [(suspension.execution_id, suspension.number, 0) for suspension in suspensions]
    while queries:
        pages = await tx.waits.signals(queries, include_unmatched=include_unmatched, limit=_PAGE)
        for id_, page in pages.items():
            signals[id_] += tuple(page)
        queries = [
            (id_, number, signals[id_][-1].seq) for id_, number, _ in queries if len(pages.get(id_, ())) == _PAGE
        ]
    return signals
