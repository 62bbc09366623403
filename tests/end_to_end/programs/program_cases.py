"""Test cases for the programs: how a test drives each program, and the expected result and effects."""

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
from tests.end_to_end.programs.effects import recorded_effects


@dataclass(frozen=True)
class Program:
    """An app with the function that drives it, the expected result and the expected effects."""

    app: App
    drive: Callable[[Kit], Awaitable[object]]
    result: object
    effects: tuple[str, ...]
    concurrency: int = 1

    def has_expected_effects(self, effects: list[str]) -> bool:
        """Return True if `effects` equal the expected effects. If executions run concurrently, ignore the order."""
        if self.concurrency == 1:
            return tuple(effects) == self.effects
        return sorted(effects) == sorted(self.effects)


async def run_hello(kit: Kit) -> object:
    return await kit.run(hello.hello, "world")


async def approve_twice(kit: Kit) -> object:
    handle = await kit.start(two_person.refund, "o-17")
    await kit.approve(handle, "refund", by="ops")
    await kit.approve(handle, "refund", by="finance")
    return await kit.finish(handle)


async def reject_once(kit: Kit) -> object:
    handle = await kit.start(two_person.refund, "o-17")
    await kit.reject(handle, "refund", by="finance", reason="too much")
    return await kit.finish(handle)


async def let_approval_time_out(kit: Kit) -> object:
    handle = await kit.start(two_person.refund, "o-17")
    await kit.approve(handle, "refund", by="ops")
    await kit.advance("25h")
    return await kit.finish(handle)


async def call_back(kit: Kit) -> object:
    external_callback.sent.clear()
    handle = await kit.start(external_callback.export, "orders")
    assert len(set(external_callback.sent)) == 1, "every call returns the same URL"
    token = external_callback.sent[0].rpartition("/")[2]
    await kit.app.signal(token, "callback", {"rows": 7, "file": "orders.csv"})
    return await kit.finish(handle)


async def let_callback_time_out(kit: Kit) -> object:
    return await kit.run(external_callback.export, "orders")


async def run_race(kit: Kit) -> object:
    handle = await kit.start(race_of_providers.fastest, "why?")
    result = await kit.finish(handle)
    executions = await kit.engine.executions.list(kind="ask", limit=3)
    return result, sorted(execution.state.value for execution in executions.items)


async def run_fan_out(kit: Kit) -> object:
    return await kit.run(fan_out.total, 100)


async def run_small_fan_out(kit: Kit) -> object:
    return await kit.run(fan_out.total, 4)


async def book_trip(kit: Kit) -> object:
    return await kit.run(trip.trip, ["flight", "hotel"])


async def book_failing_trip(kit: Kit) -> object:
    try:
        return await kit.run(trip.trip, ["flight", "hotel", "car"])
    except ExecutionFailed as error:
        return error.error.message


async def review(kit: Kit) -> object:
    handle = await kit.start(agent.agent, "a poem")
    await kit.reject(handle, "review", by="editor", reason="longer")
    await kit.reject(handle, "review", by="editor", reason="in rhyme")
    await kit.approve(handle, "review", by="editor")
    return await kit.finish(handle)


async def run_poller(kit: Kit) -> object:
    return await kit.run(poller.watch, "job-1")


async def run_poll(kit: Kit) -> object:
    del recorded_effects[:]
    handle = await kit.start(polling.watch, "job-1")
    return await kit.finish(handle), await kit.steps(handle)


APPROVAL_MAILS = ("asked ops", "asked finance")
PROGRAMS = {
    "hello": Program(hello.app, run_hello, "Hello, world!", ()),
    "two approvals": Program(two_person.app, approve_twice, "o-17 paid back", (*APPROVAL_MAILS, "paid o-17")),
    "one rejection": Program(two_person.app, reject_once, "refused by finance", APPROVAL_MAILS),
    "approval timeout": Program(two_person.app, let_approval_time_out, "no decision", APPROVAL_MAILS),
    "callback": Program(external_callback.app, call_back, 7, ("ordered orders",)),
    "no callback": Program(external_callback.app, let_callback_time_out, -1, ("ordered orders",)),
    "race": Program(
        race_of_providers.app, run_race, ("1: b answered", ["cancelled", "cancelled", "completed"]),
        ("asked a", "asked b", "asked c"), concurrency=4,
    ),
    "fan-out": Program(fan_out.app, run_fan_out, sum(n * n for n in range(100)), ()),
    "small fan-out": Program(fan_out.app, run_small_fan_out, 14, ()),
    "saga": Program(trip.app, book_trip, ["flight-1", "hotel-1"], ("booked flight", "booked hotel")),
    "saga compensated": Program(
        trip.app, book_failing_trip, "step_failed: book#3 failed: PermanentError: no car left",
        ("booked flight", "booked hotel", "cancelled hotel-1", "cancelled flight-1"),
    ),
    "agent": Program(agent.app, review, "a poem, longer, in rhyme", ("thought 1", "thought 2", "thought 3")),
    "poller": Program(poller.app, run_poller, "job-1 ready at 4", ("asked",) * 4),
    "poll": Program(polling.app, run_poll, ("https://files.example/job-1", ["ready"]), ("asked",) * 20),
}  # fmt: skip
