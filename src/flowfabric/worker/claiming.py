"""The claim loop: one claim at a time, whenever there is room and there may be work; otherwise it waits for a bell.

A claim that was sent is never given up: what it brings would be held by nobody until it runs out. If its reply is lost,
the store is asked afterwards what this worker holds.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from flowfabric.core.errors import FlowFabricError
from flowfabric.core.limits import BATCH
from flowfabric.core.outcomes import Lease, Renewed
from flowfabric.core.records import WorkerId
from flowfabric.engine.engine import Engine
from flowfabric.worker.ledger import Ledger
from flowfabric.worker.slots import Slots

_log = logging.getLogger("flowfabric.worker")
_MOST_BACKOFF_S = 5.0
_AFTER_A_PART_S = 0.05
_LAST_ANSWER_S = 2.0
Take = Callable[[Sequence[Lease], float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a worker offers to do, and as whom."""

    worker: WorkerId
    lanes: tuple[str, ...]
    capabilities: tuple[str, ...]
    lease_ttl: timedelta
    kinds: Callable[[], Sequence[str]]


class Claiming:
    """Claims for the slots; `take` gets the leases and the time by the local clock before they were asked for."""

    def __init__(self, engine: Engine, offer: Offer, slots: Slots, ledger: Ledger, take: Take) -> None:
        self._engine = engine
        self._offer = offer
        self._slots = slots
        self._ledger = ledger
        self._take = take
        self._failures = 0
        self._task: asyncio.Task[None] | None = None
        self._sent: asyncio.Task[int] | None = None

    def start(self) -> None:
        """Begins to claim."""
        self._task = asyncio.create_task(self._run(), name="flowfabric-claims")

    async def stop(self) -> None:
        """Claims no more. What was asked for already has been taken when this returns, unless the store is too slow."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._sent is not None:
            await asyncio.wait([self._sent], timeout=_LAST_ANSWER_S)

    async def unknown(self) -> list[Lease]:
        """The leases that the store gave this worker, but whose reply was lost."""
        # What is known before the look; a lease that ends during it is not taken for one that was never heard of.
        known = self._ledger.lease_ids()
        held = await self._engine.leases.held(self._offer.worker.instance)
        return [lease for lease in held if lease.fence.lease_id not in known]

    async def _run(self) -> None:
        with self._engine.leases.watch(self._offer.lanes, capabilities=self._offer.capabilities) as work:
            while True:
                room = await self._slots.wait_for_room()
                self._sent = asyncio.create_task(self._claim(room))
                found = await asyncio.shield(self._sent)
                if self._failures:
                    await asyncio.sleep(self._backoff_s())
                elif not found:
                    await work.wait()
                elif found < room:
                    # Most likely that was all. Rows that somebody had locked just then ring no bell.
                    await work.wait(_AFTER_A_PART_S)

    async def _claim(self, room: int) -> int:
        """How many leases were taken. Nothing that goes wrong ends the worker."""
        try:
            if self._failures:
                await self._take_unknown()
            asked_at = time.monotonic()
            leases = await self._ask(room)
        except Exception as error:
            self._note_failure(error)
            return 0
        self._note_success()
        self._take(leases, asked_at)
        return len(leases)

    async def _take_unknown(self) -> None:
        """After claims that failed: nobody knows how much of its term is left, so it begins anew."""
        leases = (await self.unknown())[:BATCH]
        if leases:
            asked_at = time.monotonic()
            answers = await self._engine.leases.renew_many([lease.fence for lease in leases])
            pairs = zip(leases, answers, strict=True)
            self._take([lease for lease, answer in pairs if isinstance(answer, Renewed)], asked_at)

    async def _ask(self, room: int) -> list[Lease]:
        offer = self._offer
        kinds = offer.kinds()
        if not kinds:
            return []
        return await self._engine.leases.claim(
            offer.lanes, offer.worker, capabilities=offer.capabilities, limit=room, lease_ttl=offer.lease_ttl,
            kinds=kinds,
        )  # fmt: skip

    def _note_failure(self, error: Exception) -> None:
        self._failures += 1
        if self._failures == 1:
            expected = isinstance(error, FlowFabricError)
            _log.warning("claims fail and are tried again: %s", error, exc_info=None if expected else error)

    def _note_success(self) -> None:
        if self._failures:
            _log.warning("claims work again, after %d that failed", self._failures)
            self._failures = 0

    def _backoff_s(self) -> float:
        return random.uniform(0.5, 1.0) * min(_MOST_BACKOFF_S, 0.05 * 2.0 ** min(self._failures, 10))
