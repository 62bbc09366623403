"""Shutdown of a worker: release or finish every lease without using up an attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from flowfabric.core.errors import FlowFabricError, Refused
from flowfabric.engine.engine import Engine
from flowfabric.worker.active_runs import ActiveRuns
from flowfabric.worker.claimer import Claimer
from flowfabric.worker.release import release_leases

_CLEANUP_S = 1.0


async def drain(
    engine: Engine, claimer: Claimer, runs: ActiveRuns, grace_over: asyncio.Event, loss: FlowFabricError | None
) -> None:
    """Stop claiming, release unstarted leases, and let active runs unwind until the grace period is over.

    `loss` is the error if the store is lost, so that the runs cannot record anything.
    """
    await claimer.stop()
    await release_leases(engine, runs.drain())
    await wait_for_first(runs.wait_until_idle(), grace_over.wait())
    if runs.is_busy:
        await _abandon(engine, runs, loss or Refused("execution_not_active", "the worker has stopped"))
    await release_leases(engine, runs.take_unstarted())
    await runs.finish_releases()
    await _release_unknown(engine, claimer)


async def wait_for_first(*waits: Coroutine[Any, Any, Any]) -> None:
    """Wait until one of the coroutines ends in any way, then cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _abandon(engine: Engine, runs: ActiveRuns, error: FlowFabricError) -> None:
    """Release the leases of runs that did not end in time. Cancel the runs that have not ended a moment later."""
    await release_leases(engine, runs.abandon(error))
    await wait_for_first(runs.wait_until_idle(), asyncio.sleep(_CLEANUP_S))
    tasks = runs.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_CLEANUP_S)


async def _release_unknown(engine: Engine, claimer: Claimer) -> None:
    with suppress(FlowFabricError):  # The store is unavailable, so these leases expire.
        await release_leases(engine, [lease.fence for lease in await claimer.find_unknown_leases()])
