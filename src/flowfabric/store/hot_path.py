"""Hot statements that differ in shape between backends, and what all hot statements share.

Operations call all other hot statements by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from flowfabric.core.executions.records import Fence
from flowfabric.core.executions.requests import Claim
from flowfabric.store import rows
from flowfabric.store.commit_hints import CommitHints
from flowfabric.store.records import Claimed
from flowfabric.store.session import Row, Session


class HotStatements:
    """The portable versions, for a backend without writing CTEs."""

    def __init__(self, session: Session, hints: CommitHints) -> None:
        self._session = session
        self._hints = hints

    async def claim(self, namespace: str, claim: Claim, lease_bits: bytes, *, past_locked: bool = False) -> Claimed:
        """Lease the best waiting executions along the routes that the claim may take.

        Each lease id takes 16 of the `lease_bits`. With `past_locked`, look for free executions along all routes, so
        that locked ones of one route do not hide those of another. That costs more, and only matters if there are
        several writers.
        """
        candidates = await self._session.fetch(
            "claim_candidates",
            namespace=namespace,
            lanes=list(claim.lanes),
            capabilities=list(claim.capabilities),
            kinds=None if claim.kinds is None else list(claim.kinds),
            limit=claim.limit,
        )
        lease_ids = [
            {"id": row["id"], "lease_id": UUID(bytes=lease_bits[16 * index : 16 * index + 16])}
            for index, row in enumerate(candidates)
        ]
        taken = await self._session.fetch_batch(
            "take_waiting",
            lease_ids,
            worker=claim.worker.name,
            instance=claim.worker.instance,
            ttl_us=rows.to_microseconds(claim.lease_ttl),
            now=self._session.bound_now,
        )
        lease_rows = await self._session.fetch("get_leases", ids=[row["id"] for row in taken])
        leases = {row["id"]: rows.to_lease(row, namespace, claim.worker) for row in lease_rows}
        if leases:
            self._hints.namespaces.add(namespace)
        return Claimed(tuple(leases[row["id"]] for row in candidates if row["id"] in leases), all_locked=False)

    async def pass_on(self, namespace: str, ids: Sequence[UUID], now: datetime) -> set[UUID]:
        """Release the dependents of completed members, and return the members for which this was all there was to do.

        It covers only ends after which members start that waited for nothing else. This version leaves every end to
        the full resolution.
        """
        return set()


def fence_parameters(fence: Fence) -> dict[str, object]:
    """Return the parameters by which a guarded statement checks a lease."""
    return {"execution_id": fence.execution_id, "epoch": fence.epoch, "lease_id": fence.lease_id}


def matched_ids(returned: Sequence[Row], ids: Sequence[UUID]) -> set[UUID]:
    """Return which of the distinct ids a guarded statement returned; usually all of them."""
    return set(ids) if len(returned) == len(ids) else {rows.to_uuid(row["id"]) for row in returned}
