"""The check at the start of a worker: it warns about work of the namespace that waits for a person or a worker."""

from __future__ import annotations

import logging

from flowfabric.core.errors import FlowFabricError
from flowfabric.core.executions.views import ApproximateCount
from flowfabric.core.validation import MAX_BATCH
from flowfabric.core.workers import find_missing_worker
from flowfabric.engine.engine import Engine
from flowfabric.runtime.journal import first_difference

_log = logging.getLogger("flowfabric.worker")
_MAX_WARNINGS = 10


async def warn_of_stuck_work(engine: Engine, instance: str) -> None:
    """Warn about held executions, and about waiting executions that no live worker can claim.

    `instance` is this worker. If it is not registered yet, the registered workers say nothing about waiting executions.
    """
    try:
        warnings = [*await _describe_held(engine), *await _describe_unserved(engine, instance)]
    except FlowFabricError as error:
        _log.debug("Stuck work could not be read: %s", error)
        return
    for warning in warnings[:_MAX_WARNINGS]:
        _log.warning("%s", warning)
    if len(warnings) > _MAX_WARNINGS:
        _log.warning("More work is stuck; run flowfabric doctor")


async def _describe_held(engine: Engine) -> list[str]:
    return [
        f"{_count(held.number)} of {held.kind} held ({held.reason or 'no reason given'}), first {held.first}"
        + ("" if held.report is None else f": {first_difference(held.report)}")
        + "; run flowfabric doctor"
        for held in await engine.held_work()
    ]


async def _describe_unserved(engine: Engine, instance: str) -> list[str]:
    backlog, page = await engine.backlog(), await engine.workers.list(limit=MAX_BATCH)
    workers = page.items
    if page.next_cursor is not None or all(worker.id.instance != instance for worker in workers):
        return []
    found = ((each, find_missing_worker(each.lane, each.kind, each.requires, workers)) for each in backlog)
    return [
        f"{_count(work.waiting)} of {work.kind} waiting on lane {work.lane}: {missing.sentence}"
        for work, missing in found
        if missing is not None
    ]


def _count(number: ApproximateCount) -> str:
    more = "" if number.is_exact else " or more"
    return f"{number.value}{more} execution{'' if number.value == 1 else 's'}"
