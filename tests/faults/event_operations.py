"""The steps of a named subscriber, and the end of a scratch namespace, each with the situation it needs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from flowfabric.core.positions import Position
from flowfabric.engine import Engine, NotFound
from flowfabric.ops import subscribing
from flowfabric.ops.erase import erase_next
from flowfabric.testing import VirtualClock
from tests import scenarios
from tests.faults.operations import Act, Operation, lease

NAME, HOLDER = "billing", UUID(int=7)


def step(body: Any, *arguments: object) -> Act:
    """One transaction of a subscriber, as a subscription makes it."""

    async def act(engine: Engine, _: object) -> Any:
        return await engine._context.store.run(lambda tx: body(tx, engine.namespace, NAME, *arguments))

    return act


async def held(engine: Engine, clock: VirtualClock) -> None:
    await lease(engine, clock)
    await step(subscribing.take, HOLDER, "beginning")(engine, None)


async def forget_once(engine: Engine, _: object) -> None:
    """A call that was repeated is told that there is none of that name."""
    try:
        await engine.events.forget(NAME)
    except NotFound as error:
        if error.code != "subscriber_not_found":
            raise


async def scratched(engine: Engine, clock: VirtualClock) -> Engine:
    scratch = engine.within("scratch")
    for _ in range(2):
        found = await scenarios.leased(scratch)
        await engine.within("scratch").leases.complete(found.fence, b"out")
    return scratch


async def erase(engine: Engine, scratch: Engine) -> None:
    while await engine._context.store.run(lambda tx: erase_next(tx, scratch.namespace, 100)):
        pass


EVENTS: dict[str, Operation] = {
    "a new subscriber": Operation(lease, step(subscribing.take, HOLDER, "beginning")),
    "a subscriber goes on": Operation(held, step(subscribing.commit, HOLDER, Position(0, 1))),
    "a subscriber leaves": Operation(held, step(subscribing.release, HOLDER)),
    "a subscriber is forgotten": Operation(held, forget_once),
    "erase": Operation(scratched, erase),
}
