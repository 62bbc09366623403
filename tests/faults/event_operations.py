"""The operations of a named subscriber and of a temporary namespace, with the state that each operation needs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from flowfabric.core.events.cursor import Position
from flowfabric.engine import Engine, NotFound
from flowfabric.ops.events import subscribe
from flowfabric.ops.executions.purge import erase_next
from flowfabric.ops.operation import SingleOperation
from flowfabric.testing import VirtualClock
from tests import scenarios
from tests.faults.operations import Act, Operation, lease

NAME = "billing"
HOLD = subscribe.SubscriberHold(NAME, UUID(int=7))
TAKE = subscribe.TakeRequest(HOLD, "beginning")


def step(operation: SingleOperation[Any, Any], request: object) -> Act:
    """Run one transaction of a subscriber, as a subscription does."""

    async def act(engine: Engine, _: object) -> Any:
        return await engine._context.call(operation, request)

    return act


async def held(engine: Engine, clock: VirtualClock) -> None:
    await lease(engine, clock)
    await step(subscribe.take_subscriber, TAKE)(engine, None)


async def commit(engine: Engine, _: object) -> Any:
    """Commit a position, as a subscription does."""
    start = await engine._context.call(subscribe.start_position, "beginning")
    return await step(subscribe.commit_position, subscribe.CommitRequest(HOLD, start.place, Position(0, 1)))(engine, _)


async def forget_once(engine: Engine, _: object) -> None:
    """Unsubscribe. Ignore the error of a repeated call, which finds no subscriber of that name."""
    try:
        await engine.events.unsubscribe(NAME)
    except NotFound as error:
        if error.code != "subscriber_not_found":
            raise


async def scratched(engine: Engine, clock: VirtualClock) -> Engine:
    scratch = engine.for_namespace("scratch")
    for _ in range(2):
        found = await scenarios.leased(scratch)
        await engine.for_namespace("scratch").leases.complete(found.fence, b"out")
    return scratch


async def erase(engine: Engine, scratch: Engine) -> None:
    while await scratch._context.call(erase_next, 100):
        pass


EVENTS: dict[str, Operation] = {
    "a new subscriber": Operation(lease, step(subscribe.take_subscriber, TAKE)),
    "a subscriber commits": Operation(held, commit),
    "a subscriber leaves": Operation(held, step(subscribe.release_subscriber, HOLD)),
    "a subscriber is forgotten": Operation(held, forget_once),
    "erase": Operation(scratched, erase),
}
