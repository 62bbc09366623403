"""Progress reports of a run. They change only what people see, so a report that cannot be stored is dropped."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeAlias

from flowfabric.core.errors import FlowFabricError

if TYPE_CHECKING:
    from flowfabric.runtime.run import TaskRun

Report: TypeAlias = tuple[int, str]
PAUSE_S = 1.0
_log = logging.getLogger("flowfabric.task")


class ProgressReports:
    """Stores the reports of one run: those of the task's function immediately, those of steps once a second.

    A step may report in a loop, so only the newest report of each second is stored. Use this object only on the run's
    loop.
    """

    __slots__ = ("_is_pausing", "_unsent")

    def __init__(self) -> None:
        self._unsent: Report | None = None
        self._is_pausing = False

    def send(self, run: TaskRun, report: Report) -> None:
        """Store a report now, instead of an older one that waits."""
        self._unsent = None
        task = run.loop.create_task(_store(run, *report))
        run.background_tasks.add(task)
        task.add_done_callback(run.background_tasks.discard)

    def send_later(self, run: TaskRun, report: Report) -> None:
        """Store a report when a second has passed since the previous one, unless a newer one replaces it."""
        self._unsent = report
        if not self._is_pausing:
            self._send_unsent(run)

    def _send_unsent(self, run: TaskRun) -> None:
        self._is_pausing = self._unsent is not None and not run.is_over
        if self._unsent is not None and self._is_pausing:
            self.send(run, self._unsent)
            run.loop.call_later(PAUSE_S, self._send_unsent, run)


async def _store(run: TaskRun, percent: int, message: str) -> None:
    if not run.owns_lease():
        return
    try:
        await run.engine.leases.progress(run.lease.fence, percent, message or None)
    except FlowFabricError as error:
        _log.info("The progress of %s could not be reported: %s", run.lease.execution_id, error)
