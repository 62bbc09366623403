"""claim: lease the best waiting executions that a worker may take.

```text
claim ──> by_route       the first waiting executions of each route; the caller repeats it if all were locked
      └─> past_locked    free executions along all routes; it costs more
```

`claim_execution` leases one execution by its id, and `held` lists the leases that a worker has.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from uuid import UUID

from flowfabric.core.executions.leases import decide_claim, require_interrupted
from flowfabric.core.executions.outcomes import Lease, lease_of
from flowfabric.core.executions.requests import Claim, LeaseTerms
from flowfabric.core.executions.transitions import CLAIM, check, refusal
from flowfabric.core.fast_dataclass import record
from flowfabric.core.lanes import LaneState
from flowfabric.core.workers import require_capabilities
from flowfabric.ops.apply import write_one
from flowfabric.ops.events.eras import current_era
from flowfabric.ops.locks import lock
from flowfabric.ops.operation import operation
from flowfabric.store.records import Claimed
from flowfabric.store.transaction import Transaction


@record(frozen=True, slots=True)
class ClaimAttempt:
    """A claim, random bits for the new lease ids, and whether to search further if the first executions are locked."""

    claim: Claim
    lease_bits: bytes
    past_locked: bool


# A repeated claim would take more leases, while no worker knows the first ones. The caller uses `held` instead.
@operation(single_statement=True, can_repeat=False)
async def claim(tx: Transaction, namespace: str, request: ClaimAttempt) -> Claimed:
    """Lease up to `limit` executions by priority. At equal priority, resumed executions come first, then the oldest."""
    claim.paths["past_locked" if request.past_locked else "by_route"] += 1
    return await tx.claim(namespace, request.claim, request.lease_bits, past_locked=request.past_locked)


@record(frozen=True, slots=True)
class ClaimById:
    """A claim of one execution. With `only_resumed`, it succeeds only if the attempt was interrupted."""

    execution_id: UUID
    terms: LeaseTerms
    capabilities: Collection[str]
    only_resumed: bool = False


@operation(can_repeat=False)
async def claim_execution(tx: Transaction, namespace: str, request: ClaimById) -> Lease:
    """Lease one execution; refuse if it does not wait, its lane is paused, or a capability is missing."""
    execution, now = await lock(tx, namespace, request.execution_id)
    if request.only_resumed:
        require_interrupted(execution)
    check(execution, CLAIM)
    lane = await tx.lanes.get(execution.namespace, execution.lane)
    if lane.state is LaneState.PAUSED:
        raise refusal(execution, "lane_paused", f"lane {execution.lane!r} is {lane}; resume the lane first")
    require_capabilities(await tx.routes.requires(execution) or (), request.capabilities)
    lease = await write_one(tx, decide_claim(execution, request.terms, now))
    return replace(lease, era=await current_era(tx))


@operation()
async def held(tx: Transaction, namespace: str, instance: str) -> list[Lease]:
    """Return the live leases of a worker instance, oldest first. Workers use it when the reply to a claim is lost."""
    era = await current_era(tx)
    return [replace(lease_of(execution), era=era) for execution in await tx.executions.list_leased(namespace, instance)]
