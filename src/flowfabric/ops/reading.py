"""The reads: describe, result, history, steps, lists and counts. They lock nothing."""

from __future__ import annotations

from uuid import UUID

from flowfabric.core.records import Event, RecordedStep
from flowfabric.core.states import State
from flowfabric.core.views import Description, Outcome, Summary, Tally, describe_execution, outcome_of, summarize
from flowfabric.ops.locking import read
from flowfabric.ops.observing import hold_report, views
from flowfabric.store.executions import Listing
from flowfabric.store.transaction import Transaction

COUNTED_EXACTLY = 10_000


async def describe(tx: Transaction, namespace: str, id_: UUID) -> Description:
    """Everything about one execution."""
    execution = await read(tx, namespace, id_)
    requires = await tx.routes.requires(execution.route_id)
    suspension, waitpoints = (None, []) if execution.plain else await views(tx, id_)
    report = await hold_report(tx, execution)
    return describe_execution(execution, requires, await tx.attempts.of(id_), suspension, waitpoints, report)


async def result(tx: Transaction, namespace: str, id_: UUID) -> Outcome | None:
    """How the execution ended, with its result; None while it has not."""
    execution = await read(tx, namespace, id_)
    if not execution.state.is_terminal:
        return None
    return outcome_of(execution, await tx.attempts.at(id_, execution.attempt_index))


async def history(tx: Transaction, namespace: str, id_: UUID, after: int, limit: int) -> list[Event]:
    """The events of an execution, in order; they outlive it."""
    events = await tx.events.history(namespace, id_, after, limit)
    if not events:
        await read(tx, namespace, id_)
    return events


async def steps(tx: Transaction, namespace: str, id_: UUID, after: int, limit: int) -> list[RecordedStep]:
    """The steps that answer at present, in the order they were recorded."""
    await read(tx, namespace, id_)
    return await tx.steps.of(id_, after, limit)


async def children(tx: Transaction, namespace: str, id_: UUID, after: UUID | None, limit: int) -> list[Summary]:
    """The children of an execution, oldest first. They may outlive it."""
    ids = sorted(member.id for member in await tx.flows.members.children_of([id_]))
    wanted = [child for child in ids if after is None or child > after][:limit]
    found = await tx.executions.get(namespace, wanted) if wanted else {}
    if not found:
        await read(tx, namespace, id_)
    return [summarize(found[child]) for child in wanted if child in found]


async def list_executions(tx: Transaction, listing: Listing) -> list[Summary]:
    """One page of executions, newest first."""
    return [summarize(execution) for execution in await tx.executions.page(listing)]


async def count_by_state(tx: Transaction, namespace: str) -> dict[State, Tally]:
    """How many executions are in each state: exact up to 10,000, above that an estimate."""
    counts: dict[State, Tally] = {}
    for state in State:
        number = await tx.executions.count(namespace, state, COUNTED_EXACTLY + 1)
        if number <= COUNTED_EXACTLY:
            counts[state] = Tally(number, exact=True)
        else:
            counts[state] = Tally(max(number, await tx.executions.estimate(namespace, state)), exact=False)
    return counts
