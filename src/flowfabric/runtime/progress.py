"""Progress reports of a run. They change only what people see, so a report that cannot be stored is dropped."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from flowfabric.core.errors import FlowFabricError

if TYPE_CHECKING:
    from flowfabric.runtime.run import TaskRun

Report: TypeAlias = tuple[int, str]
PAUSE_S = 1.0
_log = logging.getLogger("flowfabric.task")


@dataclass(slots=True)
class ProgressReports:
    """The newest report of a run's steps that is not sent yet. Steps may report in a loop, so reports are paused."""

    unsent: Report | None = None
    is_pausing: bool = False


def send_report(run: TaskRun, report: Report) -> None:
    """Store a report now, instead of an older one that waits. Call this on the run's loop."""
    if run.progress is not None:
        run.progress.unsent = None
    task = run.loop.create_task(_store(run, *report))
    run.background_tasks.add(task)
    task.add_done_callback(run.background_tasks.discard)


def send_report_later(run: TaskRun, report: Report) -> None:
    """Store a report of a step, at the earliest a second after the last one. A newer report replaces it until then."""
    if run.progress is None:
        run.progress = ProgressReports()
    run.progress.unsent = report
    if not run.progress.is_pausing:
        _send_unsent(run, run.progress)


def _send_unsent(run: TaskRun, reports: ProgressReports) -> None:
    report = reports.unsent
    reports.is_pausing = report is not None and not run.is_over
    if report is not None and reports.is_pausing:
        send_report(run, report)
        run.loop.call_later(PAUSE_S, _send_unsent, run, reports)


async def send_last(run: TaskRun) -> bool:
    """Store the report of a step that is not sent yet, before the run gives up its lease. Return False if none is."""
    if run.progress is None or not (run.progress.unsent or run.background_tasks):
        return False
    if run.progress.unsent is not None:
        send_report(run, run.progress.unsent)
    await asyncio.wait(run.background_tasks)
    return True


async def _store(run: TaskRun, percent: int, message: str) -> None:
    if not run.owns_lease():
        return
    try:
        await run.engine.leases.progress(run.lease.fence, percent, message or None)
    except FlowFabricError as error:
        _log.info("The progress of %s could not be reported: %s", run.lease.execution_id, error)
