"""Takes workers out of the register that have not been heard of in time."""

from __future__ import annotations

from flowfabric.ops.remove_worker import lapsed_workers, sweep_workers
from flowfabric.reconcilers.duty import RowDuty


def worker_liveness() -> RowDuty[tuple[str, str]]:
    """The duty over a worker's `expires_at`."""
    return RowDuty("worker_liveness", lapsed_workers, sweep_workers)
