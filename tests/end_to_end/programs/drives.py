"""How each program is used in a test: what is started, who decides what, and what it all comes to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from flowfabric import App, ExecutionFailed
from flowfabric.testing import Kit
from tests.end_to_end.programs import (
    agent,
    external_callback,
    fan_out,
    hello,
    poller,
    polling,
    race_of_providers,
    trip,
    two_person,
)
from tests.end_to_end.programs.world import happened


@dataclass(frozen=True)
class Program:
    """An app, its use, what that comes to, and what happens in the world."""

    app: App
    drive: Callable[[Kit], Awaitable[object]]
    result: object
    effects: tuple[str, ...]
    concurrency: int = 1

    def has_happened(self, effects: list[str]) -> bool:
        """True if these are the effects; those of executions side by side come in any order."""
        if self.concurrency == 1:
            return tuple(effects) == self.effects
        return sorted(effects) == sorted(self.effects)


async def say_hello(kit: Kit) -> object:
    return await kit.run(hello.hello, "world")


async def both_approve(kit: Kit) -> object:
    handle = await kit.start(two_person.refund, "o-17")
    await kit.approve(handle, "refund", by="ops")
    await kit.approve(handle, "refund", by="finance")
    return await kit.finish(handle)


async def one_rejects(kit: Kit) -> object:
    handle = await kit.start(two_person.refund, "o-17")
    await kit.reject(handle, "refund", by="finance", reason="too much")
    return await kit.finish(handle)


async def nobody_decides(kit: Kit) -> object:
    handle = await kit.start(two_person.refund, "o-17")
    await kit.approve(handle, "refund", by="ops")
    await kit.advance("25h")
    return await kit.finish(handle)


async def call_back(kit: Kit) -> object:
    external_callback.sent.clear()
    handle = await kit.start(external_callback.export, "orders")
    assert len(set(external_callback.sent)) == 1, "however often it is asked for, there is one address"
    token = external_callback.sent[0].rpartition("/")[2]
    await kit.app.signal(token, "callback", {"rows": 7, "file": "orders.csv"})
    return await kit.finish(handle)


async def never_call_back(kit: Kit) -> object:
    return await kit.run(external_callback.export, "orders")


async def race_them(kit: Kit) -> object:
    handle = await kit.start(race_of_providers.fastest, "why?")
    result = await kit.finish(handle)
    newest = await kit.engine.executions.list(kind="ask", limit=3)
    return result, sorted(item.state.value for item in newest.items)


async def fan(kit: Kit) -> object:
    return await kit.run(fan_out.total, 100)


async def fan_a_few(kit: Kit) -> object:
    return await kit.run(fan_out.total, 4)


async def travel(kit: Kit) -> object:
    return await kit.run(trip.trip, ["flight", "hotel"])


async def travel_in_vain(kit: Kit) -> object:
    try:
        return await kit.run(trip.trip, ["flight", "hotel", "car"])
    except ExecutionFailed as failed:
        return failed.error.message


async def review(kit: Kit) -> object:
    handle = await kit.start(agent.agent, "a poem")
    await kit.reject(handle, "review", by="editor", reason="longer")
    await kit.reject(handle, "review", by="editor", reason="in rhyme")
    await kit.approve(handle, "review", by="editor")
    return await kit.finish(handle)


async def watch_job(kit: Kit) -> object:
    return await kit.run(poller.watch, "job-1")


async def poll_job(kit: Kit) -> object:
    del happened[:]
    handle = await kit.start(polling.watch, "job-1")
    return await kit.finish(handle), await kit.steps(handle)


ASKED = ("asked ops", "asked finance")
PROGRAMS = {
    "hello": Program(hello.app, say_hello, "Hello, world!", ()),
    "two approve": Program(two_person.app, both_approve, "o-17 paid back", (*ASKED, "paid o-17")),
    "one rejects": Program(two_person.app, one_rejects, "refused by finance", ASKED),
    "nobody decides": Program(two_person.app, nobody_decides, "nobody answered", ASKED),
    "callback": Program(external_callback.app, call_back, 7, ("ordered orders",)),
    "no callback": Program(external_callback.app, never_call_back, -1, ("ordered orders",)),
    "race": Program(
        race_of_providers.app, race_them, ("1: b answered", ["cancelled", "cancelled", "completed"]),
        ("asked a", "asked b", "asked c"), concurrency=4,
    ),
    "fan-out": Program(fan_out.app, fan, sum(n * n for n in range(100)), ()),
    "small fan-out": Program(fan_out.app, fan_a_few, 14, ()),
    "saga": Program(trip.app, travel, ["flight-1", "hotel-1"], ("booked flight", "booked hotel")),
    "saga undone": Program(
        trip.app, travel_in_vain, "step_failed: book#3 failed: PermanentError: no car left",
        ("booked flight", "booked hotel", "cancelled hotel-1", "cancelled flight-1"),
    ),
    "agent": Program(agent.app, review, "a poem, longer, in rhyme", ("thought 1", "thought 2", "thought 3")),
    "poller": Program(poller.app, watch_job, "job-1 ready at 4", ("asked",) * 4),
    "poll": Program(polling.app, poll_job, ("https://files.example/job-1", ["ready"]), ("asked",) * 20),
}  # fmt: skip
