"""Ends leases that ran out: the execution is requeued, kept for a hand-off, or fails past its cap of reclaims."""

from flowfabric.core.leasing import decide_lease_check
from flowfabric.reconcilers.duty import Duty, deciding


def lease_expiry() -> Duty:
    """The duty over `lease_check_at`, which renewals never touch."""
    return Duty("lease_expiry", deciding(decide_lease_check))
