"""Branches that neither wait nor work: one that wants a lock which a waiting branch holds, for example."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from flowfabric.sdk.parking import Wait

if TYPE_CHECKING:
    from flowfabric.sdk.run import Run

LOG = logging.getLogger("flowfabric")


class Stalling:
    """Tells, once, when nothing has happened in a run for a whole lease, and yet it cannot be suspended."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._calls, self._since = 0, run.loop.time()

    def check(self, parked: Wait) -> float:
        """Looks at the run while a branch is parked and another is active; answers after how many seconds to look
        again."""
        run = self._run
        lease_s = (run.lease.expires_at - run.lease.acquired_at).total_seconds()
        calls, now = len(run.calls.made), run.loop.time()
        if run.in_flight or calls != self._calls:
            self._calls, self._since = calls, now
        elif now - self._since >= lease_s:
            self._since = math.inf
            said = "%s keeps its slot while %s waits; is a lock held across a wait?"
            LOG.warning(said, run.task.name, parked.path)
        return lease_s
