"""Reads of executions: describe, result, history, steps, lists, counts and the backlog. They lock nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from flowfabric.core.errors import NotFound
from flowfabric.core.executions.records import Event, Execution, RecordedStep
from flowfabric.core.executions.states import State
from flowfabric.core.executions.views import (
    ApproximateCount,
    Backlog,
    Description,
    HeldWork,
    Outcome,
    Summary,
    describe_execution,
    make_outcome,
    summarize,
)
from flowfabric.ops.locks import read_execution
from flowfabric.ops.operation import operation
from flowfabric.ops.waits.read import read_hold_report, read_report, read_wait_views
from flowfabric.store.records import Listing
from flowfabric.store.transaction import Transaction

MAX_EXACT_COUNT = 10_000
MAX_EXACT_BACKLOG = 1_000
MAX_HELD_GROUPS = 20


@dataclass(frozen=True, slots=True)
class NumberedPage:
    """A page of events or steps of one execution: at most `limit` records with a number above `after`."""

    execution_id: UUID
    after: int
    limit: int


@dataclass(frozen=True, slots=True)
class IdPage:
    """A page of the children of execution `id`: at most `limit` children whose own id is above `after`."""

    id: UUID
    after: UUID | None
    limit: int


@operation(read_only=True)
async def describe(tx: Transaction, namespace: str, id_: UUID) -> Description:
    """Return everything about one execution."""
    return await _describe(tx, await read_execution(tx, namespace, id_))


async def _describe(tx: Transaction, execution: Execution) -> Description:
    requires = await tx.routes.requires(execution) or ()
    suspension, waitpoints = (None, []) if execution.is_standalone else await read_wait_views(tx, execution.id)
    report = await read_hold_report(tx, execution)
    return describe_execution(
        execution, requires, await tx.attempts.list_all(execution.id), suspension, waitpoints, report
    )


@operation(read_only=True)
async def find(tx: Transaction, namespace: str, key: str) -> Description:
    """Return everything about the execution that holds an idempotency key."""
    id_ = await tx.idempotency_keys.find(namespace, key)
    if id_ is None:
        message = f"no execution of this namespace holds the key {key!r}; check the key and the namespace"
        raise NotFound("execution_not_found", message, key=key)
    executions = await tx.executions.get(namespace, [id_])
    if id_ not in executions:
        message = f"execution {id_}, which holds the key {key!r}, was purged; submit it again after the key's window"
        raise NotFound("execution_not_found", message, execution_id=id_, key=key)
    return await _describe(tx, executions[id_])


@operation(read_only=True)
async def result(tx: Transaction, namespace: str, id_: UUID) -> Outcome | None:
    """Return how the execution ended, with its result, or None if it has not ended."""
    execution = await read_execution(tx, namespace, id_)
    if not execution.state.is_terminal:
        return None
    return make_outcome(execution, await tx.attempts.get(id_, execution.attempt_index))


@operation(read_only=True)
async def history(tx: Transaction, namespace: str, page: NumberedPage) -> list[Event]:
    """Return events of an execution, in order. Events stay readable after the execution was removed."""
    events = await tx.events.history(namespace, page.execution_id, page.after, page.limit)
    if not events:
        await read_execution(tx, namespace, page.execution_id)
    return events


@operation(read_only=True)
async def steps(tx: Transaction, namespace: str, page: NumberedPage) -> list[RecordedStep]:
    """Return the valid recorded steps of an execution, in the order they were recorded."""
    await read_execution(tx, namespace, page.execution_id)
    return await tx.steps.list_page(page.execution_id, page.after, page.limit)


@operation(read_only=True)
async def children(tx: Transaction, namespace: str, page: IdPage) -> list[Summary]:
    """Return the children of an execution, oldest first, even if the execution itself was removed."""
    ids = sorted(member.id for member in await tx.members.children_of([page.id]))
    child_ids = [child for child in ids if page.after is None or child > page.after][: page.limit]
    executions = await tx.executions.get(namespace, child_ids) if child_ids else {}
    if not executions:
        await read_execution(tx, namespace, page.id)
    return [summarize(executions[child]) for child in child_ids if child in executions]


@operation(read_only=True)
async def list_executions(tx: Transaction, namespace: str, listing: Listing) -> list[Summary]:
    """Return one page of executions, newest first."""
    if listing.key is not None:
        id_ = await tx.idempotency_keys.find(namespace, listing.key)
        if id_ is None:
            return []
        after_id = UUID(int=id_.int + 1)
        listing = replace(listing, first=max(listing.first, id_), before=min(listing.before, after_id))
    return [summarize(execution) for execution in await tx.executions.page(listing)]


@operation(read_only=True)
async def count_by_state(tx: Transaction, namespace: str, _: None) -> dict[State, ApproximateCount]:
    """Return the number of executions in each state: exact up to 10,000, an estimate above that."""
    counts: dict[State, ApproximateCount] = {}
    for state in State:
        number = await tx.executions.count(namespace, state, MAX_EXACT_COUNT + 1)
        if number <= MAX_EXACT_COUNT:
            counts[state] = ApproximateCount(number, is_exact=True)
        else:
            estimate = await tx.executions.estimate(namespace, state)
            counts[state] = ApproximateCount(max(number, estimate), is_exact=False)
    return counts


@operation(read_only=True)
async def backlog(tx: Transaction, namespace: str, _: None) -> list[Backlog]:
    """Return how many executions wait for a worker, by lane, kind and required capabilities."""
    return await tx.routes.backlog(namespace, MAX_EXACT_BACKLOG)


@operation(read_only=True)
async def held_work(tx: Transaction, namespace: str, _: None) -> list[HeldWork]:
    """Return the held executions by kind and hold reason, with the report of the oldest one of each."""
    work: list[HeldWork] = []
    kind = await tx.executions.next_held_kind(namespace, "")
    while kind is not None and len(work) < MAX_HELD_GROUPS:
        held = await tx.executions.list_hold_reasons(namespace, kind, MAX_EXACT_BACKLOG + 1)
        numbers = Counter(reason for _, reason in held)
        oldest = {reason: id_ for id_, reason in reversed(held)}
        for reason, number in numbers.most_common(MAX_HELD_GROUPS - len(work)):
            count = ApproximateCount(number, is_exact=len(held) <= MAX_EXACT_BACKLOG)
            report = await read_report(tx, oldest[reason])
            work.append(HeldWork(kind=kind, reason=reason, number=count, first=oldest[reason], report=report))
        kind = await tx.executions.next_held_kind(namespace, kind)
    return work


@operation(read_only=True, single_statement=True)
async def read_time(tx: Transaction, namespace: str, _: None) -> datetime:
    """Return the time of the store's clock."""
    return await tx.now()
