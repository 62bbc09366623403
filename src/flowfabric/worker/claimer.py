"""The claim loop. It makes one claim at a time while slots are free. If there is no work, it waits for a notification.

A claim that was sent is never cancelled, because no worker would run its leases until they expire. If the reply to a
claim is lost, the claimer reads from the store which leases this worker holds. It accepts those under which no code has
run, and gives back the others.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from flowfabric.core.errors import FlowFabricError, is_permanent
from flowfabric.core.executions.outcomes import Lease, Renewed
from flowfabric.core.executions.records import WorkerId
from flowfabric.core.validation import MAX_BATCH
from flowfabric.engine.engine import Engine
from flowfabric.engine.lease_locks import lease_time
from flowfabric.worker.active_runs import Slots
from flowfabric.worker.leases import LeaseTable

_log = logging.getLogger("flowfabric.worker")
_MAX_BACKOFF_S = 5.0
_PARTIAL_CLAIM_PAUSE_S = 0.05
_LAST_CLAIM_TIMEOUT_S = 2.0
AcceptLeases = Callable[[Sequence[Lease], float], None]
GiveBackLeases = Callable[[Sequence[Lease]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimCriteria:
    """Which executions a worker claims, and under which worker id."""

    worker: WorkerId
    lanes: tuple[str, ...]
    capabilities: tuple[str, ...]
    lease_ttl: timedelta
    kinds: Callable[[], Sequence[str]]
    is_yielding: Callable[[], bool]


class Claimer:
    """Claims leases for free slots. `accept` gets the leases and the local time at which they were requested.

    `give_back` gets leases that the store lists and that must not run, because code has run under them before.
    `on_store_lost` gets an error after which no claim of this process can succeed.
    """

    def __init__(
        self,
        engine: Engine,
        criteria: ClaimCriteria,
        slots: Slots,
        lease_table: LeaseTable,
        *,
        accept: AcceptLeases,
        give_back: GiveBackLeases,
        on_store_lost: Callable[[BaseException], None],
    ) -> None:
        self._engine = engine
        self._criteria = criteria
        self._slots = slots
        self._lease_table = lease_table
        self._accept = accept
        self._give_back = give_back
        self._on_store_lost = on_store_lost
        self._failures = 0
        self._task: asyncio.Task[None] | None = None
        self._sent: asyncio.Task[int] | None = None

    def start(self) -> None:
        """Start claiming."""
        self._task = asyncio.create_task(self._run(), name="flowfabric-claims")

    async def stop(self) -> None:
        """Stop claiming. If a claim was already sent, wait for its leases, unless the store is too slow."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._sent is not None:
            await asyncio.wait([self._sent], timeout=_LAST_CLAIM_TIMEOUT_S)

    async def find_unknown_leases(self) -> list[Lease]:
        """Return the leases that this worker holds in the store but does not know, because a reply was lost."""
        # Read the lease table before the store, so that a lease that ends during the query does not count as unknown.
        known = self._lease_table.lease_ids()
        held = await self._engine.leases.held(self._criteria.worker.instance)
        return [lease for lease in held if lease.fence.lease_id not in known]

    async def _run(self) -> None:
        with self._engine.leases.watch(self._criteria.lanes, capabilities=self._criteria.capabilities) as work:
            while True:
                limit = await self._slots.wait_until_claimable()
                self._sent = asyncio.create_task(self._claim(limit))
                claimed = await asyncio.shield(self._sent)
                if self._failures:
                    await asyncio.sleep(self._backoff_s())
                elif not claimed:
                    await work.wait()
                    if self._criteria.is_yielding():
                        await work.yield_to_others()
                elif claimed < limit:
                    # The queue is probably empty. But the claim may have skipped locked rows, for which no notification
                    # follows, so wait only briefly.
                    await work.wait(_PARTIAL_CLAIM_PAUSE_S)

    async def _claim(self, limit: int) -> int:
        """Claim leases and return their number. Log an error instead of raising it, so that the worker continues."""
        try:
            if self._failures:
                await self._accept_unknown()
            requested_at = lease_time()
            leases = await self._request_leases(limit)
        except Exception as error:
            self._note_failure(error)
            return 0
        if self._failures:
            _log.warning("Claim succeeded again after %d failures", self._failures)
            self._failures = 0
        self._accept(leases, requested_at)
        return len(leases)

    async def _accept_unknown(self) -> None:
        """Accept leases of claims whose reply was lost. Renew them first, because their remaining time is unknown."""
        new, started = self._lease_table.split(await self.find_unknown_leases())
        self._give_back(started)
        leases = new[:MAX_BATCH]
        if leases:
            requested_at = lease_time()
            outcomes = await self._engine.leases.renew_many([lease.fence for lease in leases])
            pairs = zip(leases, outcomes, strict=True)
            self._accept([lease for lease, outcome in pairs if isinstance(outcome, Renewed)], requested_at)

    async def _request_leases(self, limit: int) -> list[Lease]:
        criteria = self._criteria
        kinds = criteria.kinds()
        if not kinds:
            return []
        return await self._engine.leases.claim(
            criteria.lanes,
            criteria.worker,
            capabilities=criteria.capabilities,
            limit=limit,
            lease_ttl=criteria.lease_ttl,
            kinds=kinds,
        )

    def _note_failure(self, error: Exception) -> None:
        self._failures += 1
        if is_permanent(error):
            self._on_store_lost(error)
            return
        if self._failures == 1:
            expected = isinstance(error, FlowFabricError)
            _log.warning("Claim failed, retrying: %s", error, exc_info=None if expected else error)

    def _backoff_s(self) -> float:
        return random.uniform(0.5, 1.0) * min(_MAX_BACKOFF_S, 0.05 * 2.0 ** min(self._failures, 10))
