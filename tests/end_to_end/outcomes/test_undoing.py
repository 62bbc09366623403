"""Sagas, which undo what was done, and steps that take too long."""

from __future__ import annotations

import asyncio
import threading

import pytest

from flowfabric import App, ExecutionCancelled, ExecutionFailed, StepFailed, Task, current, saga, sleep, step, sync
from flowfabric.engine import State
from flowfabric.testing import Kit


class Trip:
    """What was booked and taken back, in order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.refusals = 0

    def book(self, what: str) -> str:
        self.log.append(f"book {what}")
        return what

    def cancel(self, what: str) -> None:
        if self.refusals:
            self.refusals -= 1
            raise ConnectionError("try again")
        self.log.append(f"cancel {what}")

    async def everything(self) -> None:
        """The part of every saga here: two bookings, then a night."""
        async with saga() as undo:
            for what in ("flight", "hotel"):
                undo.add(self.cancel, await step(self.book, what))
            await sleep("1h")


async def test_a_saga_undoes_nothing_when_it_waits_or_succeeds(app: App, kit: Kit) -> None:
    trip = Trip()

    @app.task
    async def task() -> None:
        await trip.everything()

    await kit.run(task)

    assert trip.log == ["book flight", "book hotel"]


async def test_a_saga_undoes_newest_first_when_its_block_fails(app: App, kit: Kit) -> None:
    trip = Trip()

    @app.task
    async def task() -> None:
        async with saga() as undo:
            for what in ("flight", "hotel"):
                undo.add(trip.cancel, await step(trip.book, what))
            await sleep("1h")
            await step.options(retries=0, name="pay")(int, "no number")

    with pytest.raises(ExecutionFailed, match="pay failed"):
        await kit.run(task)
    assert trip.log == ["book flight", "book hotel", "cancel hotel", "cancel flight"]


async def test_a_saga_undoes_when_a_cancel_is_requested(app: App, kit: Kit) -> None:
    trip = Trip()

    @app.task
    async def task() -> None:
        await trip.everything()

    handle = await kit.start(task)
    await handle.cancel("changed my mind", grace="1m")

    with pytest.raises(ExecutionCancelled, match="changed my mind"):
        await kit.finish(handle)
    assert trip.log[2:] == ["cancel hotel", "cancel flight"]


async def test_a_hard_cancel_undoes_nothing(app: App, kit: Kit) -> None:
    trip = Trip()

    @app.task
    async def task() -> None:
        await trip.everything()

    handle = await kit.start(task)
    await handle.cancel()
    await kit.advance("2h")

    assert (await handle.status()).state is State.CANCELLED
    assert trip.log == ["book flight", "book hotel"]


async def test_undo_steps_are_tried_again_like_other_steps(app: App, kit: Kit) -> None:
    trip = Trip()
    trip.refusals = 2

    @app.task
    async def task() -> None:
        async with saga() as undo:
            undo.add(trip.cancel, await step(trip.book, "flight"))
            raise ValueError("no")

    handle = await kit.start(task.options(retries=2))
    with pytest.raises(ExecutionFailed):
        await kit.finish(handle)

    assert trip.log == ["book flight", "cancel flight"]


class Outage:
    """A body's own accident, which is over when it runs again."""

    def __init__(self, trip: Trip) -> None:
        self.trip = trip
        self.is_over = False

    async def travel(self, *, add: bool = True) -> str:
        async with saga() as undo:
            flight = await step(self.trip.book, "flight")
            if add:
                undo.add(self.trip.cancel, flight)
            if not self.is_over:
                self.is_over = True
                raise ConnectionError("no network")
            return await step(self.trip.book, "hotel")

    def travel_plainly(self) -> str:
        with sync.saga() as undo:
            undo.add(self.trip.cancel, sync.step(self.trip.book, "flight"))
            if not self.is_over:
                self.is_over = True
                raise ConnectionError("no network")
            return sync.step(self.trip.book, "hotel")


def travelling(app: App, outage: Outage, colour: str) -> Task[[], str]:
    if colour == "async":

        @app.task(name="travel")
        async def travel() -> str:
            return await outage.travel()

        return travel

    @app.task(name="travel")
    def travel_plainly() -> str:
        return outage.travel_plainly()

    return travel_plainly


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_saga_undone_after_an_accident_fails_for_good(app: App, kit: Kit, colour: str) -> None:
    outage = Outage(Trip())
    task = travelling(app, outage, colour)

    handle = await kit.start(task)
    with pytest.raises(ExecutionFailed, match="ConnectionError: no network"):
        await kit.finish(handle)

    assert outage.trip.log == ["book flight", "cancel flight"]
    assert (await handle.status()).attempt_index == 0


@pytest.mark.parametrize("colour", ["async", "sync"])
@pytest.mark.parametrize("where", ["saga", "Trip.cancel"])
async def test_a_saga_that_was_being_undone_for_an_accident_is_undone_also_if_there_is_none_any_more(
    app: App, kit: Kit, colour: str, where: str
) -> None:
    outage = Outage(Trip())
    task = travelling(app, outage, colour)

    kit.crash_after(where)
    handle = await kit.start(task)
    with pytest.raises(ExecutionFailed, match="ConnectionError: no network"):
        await kit.finish(handle)

    assert outage.trip.log == ["book flight", "cancel flight"]


async def test_a_saga_without_anything_to_undo_is_tried_again_after_an_accident(app: App, kit: Kit) -> None:
    outage = Outage(Trip())

    @app.task
    async def task() -> str:
        return await outage.travel(add=False)

    assert await kit.run(task) == "hotel"
    assert outage.trip.log == ["book flight", "book hotel"]


async def test_a_saga_within_a_saga_is_undone_again_for_what_was_recorded(app: App, kit: Kit) -> None:
    trip, fails = Trip(), [True]

    @app.task
    async def task() -> None:
        async with saga() as outer:
            outer.add(trip.cancel, await step(trip.book, "flight"))
            async with saga() as inner:
                inner.add(trip.cancel, await step(trip.book, "hotel"))
                if fails.pop() if fails else False:
                    raise ConnectionError("no network")
            await step(trip.book, "car")

    kit.crash_before("Trip.cancel#2")
    handle = await kit.start(task)
    with pytest.raises(ExecutionFailed, match="ConnectionError: no network"):
        await kit.finish(handle)

    assert trip.log == ["book flight", "book hotel", "cancel hotel", "cancel flight", "cancel flight"]


async def test_what_cannot_be_undone_is_told_beside_the_cause_and_the_rest_is_undone(app: App, memory_kit: Kit) -> None:
    undone: list[str] = []

    def refuse() -> None:
        raise PermissionError("no refund")

    @app.task(retries=0)
    async def task() -> None:
        async with saga() as undo:
            undo.add(undone.append, "first")
            undo.add(refuse)
            raise ValueError("the cause")

    with pytest.raises(ExecutionFailed, match="not everything could be undone") as failed:
        await memory_kit.run(task)
    assert undone == ["first"]
    assert "the cause" in failed.value.error.traceback
    assert "no refund" in failed.value.error.traceback


async def test_a_replay_after_an_undoing_begins_from_the_start(app: App, kit: Kit) -> None:
    trip = Trip()

    @app.task(retries=0)
    async def task() -> None:
        async with saga() as undo:
            undo.add(trip.cancel, await step(trip.book, "flight"))
            raise ValueError("no")

    handle = await kit.start(task)
    await handle.replay()
    await kit.work()

    assert trip.log == ["book flight", "cancel flight"] * 2


async def test_a_replay_after_an_undoing_may_begin_from_a_named_step(app: App, kit: Kit) -> None:
    trip, fails = Trip(), True

    @app.task(retries=0)
    async def task() -> None:
        async with saga() as undo:
            undo.add(trip.cancel, await step(trip.book, "flight"))
            await step(trip.book, "hotel")
            if fails:
                raise ValueError("no")

    handle = await kit.start(task)
    fails = False
    await handle.replay(from_step="Trip.book#2")
    await kit.finish(handle)

    assert trip.log == ["book flight", "book hotel", "cancel flight", "book hotel"]


async def test_a_step_past_its_timeout_is_a_failure_that_is_recorded(app: App, memory_kit: Kit) -> None:
    seen: list[str] = []

    @app.task(retries=0)
    async def task() -> None:
        try:
            await step.options(timeout=0.01)(asyncio.Event().wait)
        except StepFailed as failed:
            seen.append(f"{failed.caused_by(TimeoutError)}: {failed.error.message}")
        await sleep("1h")

    await memory_kit.run(task)

    assert seen == ["True: Event.wait took longer than 0.01 s"] * 2


async def test_a_plain_step_past_its_timeout_finishes_by_itself_and_its_result_is_dropped(
    app: App, memory_kit: Kit
) -> None:
    go_on, ended = threading.Event(), threading.Event()

    @step.policy(timeout=0.01, retries=0)
    def slow() -> str:
        go_on.wait(20)
        ended.set()
        return "too late"

    @app.task
    async def task() -> str:
        try:
            return await step(slow)
        except StepFailed:
            return "given up"

    assert await memory_kit.run(task) == "given up"
    assert not ended.is_set()
    go_on.set()
    assert await asyncio.to_thread(ended.wait, 20)


async def test_a_plain_step_past_its_timeout_can_ask_whether_anybody_still_wants_its_result(
    app: App, memory_kit: Kit
) -> None:
    go_on, answered = threading.Event(), threading.Event()
    answers: list[bool] = []

    @step.policy(timeout=0.01, retries=0)
    def slow() -> None:
        answers.append(current().cancelled)
        go_on.wait(20)
        answers.append(current().cancelled)
        answered.set()

    @app.task
    async def task() -> None:
        with pytest.raises(StepFailed):
            await step(slow)
        go_on.set()
        await asyncio.to_thread(answered.wait, 20)

    await memory_kit.run(task)

    assert answers == [False, True]


async def test_a_try_past_its_timeout_is_tried_again(app: App, memory_kit: Kit) -> None:
    tries: list[int] = []

    async def slow_at_first() -> int:
        tries.append(len(tries))
        if len(tries) == 1:
            await asyncio.Event().wait()
        return len(tries)

    @app.task(retries=1)
    async def task() -> int:
        return await step.options(timeout=0.01)(slow_at_first)

    assert await memory_kit.run(task) == 2
