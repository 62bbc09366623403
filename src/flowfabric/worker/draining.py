"""How a worker ends: nothing is left behind, and no attempt is used up."""

from __future__ import annotations

import asyncio

from flowfabric.core.errors import FlowFabricError, Refused
from flowfabric.engine.engine import Engine
from flowfabric.worker.claiming import Claiming
from flowfabric.worker.giving_back import give_back
from flowfabric.worker.performances import Performances
from flowfabric.worker.racing import first_of

_LAST_WORDS_S = 1.0


async def drain(engine: Engine, claiming: Claiming, performances: Performances, grace_over: asyncio.Event) -> None:
    """Ends all work: claims no more, gives back what was not started, lets the rest unwind until the grace is over."""
    await claiming.stop()
    await give_back(engine, performances.drain())
    await first_of(performances.finished(), grace_over.wait())
    if performances.is_busy:
        await _abandon(engine, performances)
    await give_back(engine, performances.take_unstarted())
    await _give_back_unknown(engine, claiming)


async def _abandon(engine: Engine, performances: Performances) -> None:
    """Gives the leases back for those who did not; nobody is waited for much longer."""
    await give_back(engine, performances.abandon(Refused("execution_not_active", "the worker has stopped")))
    await first_of(performances.finished(), asyncio.sleep(_LAST_WORDS_S))
    tasks = performances.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_LAST_WORDS_S)


async def _give_back_unknown(engine: Engine, claiming: Claiming) -> None:
    try:
        await give_back(engine, [lease.fence for lease in await claiming.unknown()])
    except FlowFabricError:
        return  # The store does not answer: they run out by themselves.
