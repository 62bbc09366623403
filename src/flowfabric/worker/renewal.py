"""Keeping leases: those in use are renewed in batches at a third of their term, those that could not be started are
given back, those that could not be renewed are told lost before they are.

A renewal that fails is tried again, up to four times before a term ends. The local clock alone decides when a lease is
lost, so that a store which does not answer cannot hide it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from flowfabric.core.errors import FlowFabricError, Refused, Unavailable
from flowfabric.core.limits import BATCH
from flowfabric.core.outcomes import Renewed
from flowfabric.core.records import Fence
from flowfabric.engine.engine import Engine
from flowfabric.worker.giving_back import give_back
from flowfabric.worker.ledger import Ledger

_log = logging.getLogger("flowfabric.worker")
_ROUNDS_PER_TERM = 6
_LOOKS_PER_TERM = 12
_PATIENCE = 1 / 3
Opening = Callable[[], AbstractAsyncContextManager[Engine]]


@dataclass(slots=True)
class Report:
    """What one round found out, for the worker's loop."""

    lost: dict[Fence, FlowFabricError] = field(default_factory=dict)
    given_back: list[Fence] = field(default_factory=list)
    renewed: dict[Fence, Renewed] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.lost or self.given_back or self.renewed)


class Renewal:
    """Looks after a ledger; `tell` takes its reports, in the loop that it runs in."""

    def __init__(self, ledger: Ledger, ttl_s: float, opening: Opening, tell: Callable[[Report], None]) -> None:
        self._ledger = ledger
        self._ttl_s = ttl_s
        self._opening = opening
        self._tell = tell
        self._is_failing = False

    async def run(self) -> None:
        """Goes on until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_losses())
            group.create_task(self._renew())

    async def round(self, engine: Engine) -> Report:
        """Does what is due by now; answers what came of it."""
        report = Report()
        idle = self._ledger.take_idle()
        if idle:
            report.given_back += idle
            await give_back(engine, idle)
        due = self._ledger.due()
        for start in range(0, len(due), BATCH):
            await self._renew_batch(engine, due[start : start + BATCH], report)
        return report

    async def _renew(self) -> None:
        """An engine that breaks is opened again: what is held must be renewed whatever happens."""
        while True:
            try:
                async with self._opening() as engine:
                    while True:
                        self._report(await self.round(engine))
                        await asyncio.sleep(self._pause_s())
            except FlowFabricError as error:
                self._note_failure(error)
            except Exception:
                _log.exception("renewing leases broke and is tried again")
            await asyncio.sleep(self._pause_s() * random.uniform(0.5, 1.0))

    async def _renew_batch(self, engine: Engine, fences: Sequence[Fence], report: Report) -> None:
        asked_at = time.monotonic()
        try:
            async with asyncio.timeout(self._ttl_s * _PATIENCE):
                answers = await engine.leases.renew_many(fences)
        except (Unavailable, TimeoutError) as error:
            self._note_failure(error)
            return
        for fence, answer in zip(fences, answers, strict=True):
            self._note_answer(fence, answer, asked_at, report)

    def _note_answer(self, fence: Fence, answer: Renewed | FlowFabricError, asked_at: float, report: Report) -> None:
        if isinstance(answer, Unavailable):
            self._note_failure(answer)
        elif isinstance(answer, FlowFabricError):
            if self._ledger.remove(fence.lease_id):
                report.lost[fence] = answer
        elif self._ledger.extend(fence.lease_id, asked_at):
            self._is_failing = False
            report.renewed[fence] = answer

    async def _watch_losses(self) -> None:
        while True:
            self._report(Report(lost={fence: _unrenewed(fence) for fence in self._ledger.take_lost()}))
            await asyncio.sleep(self._ledger.next_loss_in(self._ttl_s / _LOOKS_PER_TERM))

    def _report(self, report: Report) -> None:
        if report:
            self._tell(report)

    def _pause_s(self) -> float:
        return self._ttl_s / _ROUNDS_PER_TERM

    def _note_failure(self, error: Exception) -> None:
        if not self._is_failing:
            self._is_failing = True
            _log.warning("leases cannot be renewed, trying again: %s", str(error) or "the store did not answer in time")


def _unrenewed(fence: Fence) -> FlowFabricError:
    message = "this lease ran out of time: it could not be renewed"
    return Refused("lease_expired", message, execution_id=fence.execution_id, epoch=fence.epoch)
