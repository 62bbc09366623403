"""Destroys the secrets of retired keys when nothing can be verified with them any more."""

from __future__ import annotations

from flowfabric.ops.key_ring import collect_keys, expired_kids
from flowfabric.reconcilers.duty import RowDuty


def key_collection() -> RowDuty[str]:
    """The duty over a retired key's `verifies_until`."""
    return RowDuty("key_collection", expired_kids, collect_keys)
