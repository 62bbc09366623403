"""Sagas compensate completed steps, and steps have timeouts."""

from __future__ import annotations

import asyncio
import threading

import pytest

from flowfabric import App, ExecutionCancelled, ExecutionFailed, StepFailed, Task, current, saga, sleep, step, sync
from flowfabric.engine import State
from flowfabric.testing import Kit


class Trip:
    """Bookings and cancellations, in order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.refusals = 0

    def book(self, part: str) -> str:
        self.log.append(f"book {part}")
        return part

    def cancel(self, part: str) -> None:
        if self.refusals:
            self.refusals -= 1
            raise ConnectionError("try again")
        self.log.append(f"cancel {part}")

    async def book_all(self) -> None:
        """Book two parts in a saga, then sleep."""
        async with saga() as undo:
            for part in ("flight", "hotel"):
                undo.add(self.cancel, await step(self.book, part))
            await sleep("1h")


async def test_saga_does_not_compensate_when_it_waits_or_succeeds(app: App, kit: Kit) -> None:
    trip = Trip()

    @app.task
    async def task() -> None:
        await trip.book_all()

    await kit.run(task)

    assert trip.log == ["book flight", "book hotel"]


async def test_saga_compensates_newest_first_when_its_block_fails(app: App, kit: Kit) -> None:
    trip = Trip()

    @app.task
    async def task() -> None:
        async with saga() as undo:
            for part in ("flight", "hotel"):
                undo.add(trip.cancel, await step(trip.book, part))
            await sleep("1h")
            await step.options(retries=0, name="pay")(int, "no number")

    with pytest.raises(ExecutionFailed, match="pay failed"):
        await kit.run(task)
    assert trip.log == ["book flight", "book hotel", "cancel hotel", "cancel flight"]


async def test_saga_compensates_on_a_cancel_request(app: App, kit: Kit) -> None:
    trip = Trip()

    @app.task
    async def task() -> None:
        await trip.book_all()

    handle = await kit.start(task)
    await handle.cancel("changed my mind", grace="1m")

    with pytest.raises(ExecutionCancelled, match="changed my mind"):
        await kit.finish(handle)
    assert trip.log[2:] == ["cancel hotel", "cancel flight"]


async def test_hard_cancel_does_not_compensate(app: App, kit: Kit) -> None:
    trip = Trip()

    @app.task
    async def task() -> None:
        await trip.book_all()

    handle = await kit.start(task)
    await handle.cancel()
    await kit.advance("2h")

    assert (await handle.status()).state is State.CANCELLED
    assert trip.log == ["book flight", "book hotel"]


async def test_compensations_are_retried_like_other_steps(app: App, kit: Kit) -> None:
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
    """A failure of a body that happens in one run and not in the next."""

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

    def travel_sync(self) -> str:
        with sync.saga() as undo:
            undo.add(self.trip.cancel, sync.step(self.trip.book, "flight"))
            if not self.is_over:
                self.is_over = True
                raise ConnectionError("no network")
            return sync.step(self.trip.book, "hotel")


def travel_task(app: App, outage: Outage, kind: str) -> Task[[], str]:
    if kind == "async":

        @app.task(name="travel")
        async def travel() -> str:
            return await outage.travel()

        return travel

    @app.task(name="travel")
    def travel_sync() -> str:
        return outage.travel_sync()

    return travel_sync


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_saga_compensated_after_an_unrecorded_failure_fails_permanently(app: App, kit: Kit, kind: str) -> None:
    outage = Outage(Trip())
    task = travel_task(app, outage, kind)

    handle = await kit.start(task)
    with pytest.raises(ExecutionFailed, match="ConnectionError: no network"):
        await kit.finish(handle)

    assert outage.trip.log == ["book flight", "cancel flight"]
    assert (await handle.status()).attempt_index == 0


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("where", ["saga", "Trip.cancel"])
async def test_saga_completes_its_compensation_if_the_failure_is_gone_after_a_crash(
    app: App, kit: Kit, kind: str, where: str
) -> None:
    outage = Outage(Trip())
    task = travel_task(app, outage, kind)

    kit.crash_after(where)
    handle = await kit.start(task)
    with pytest.raises(ExecutionFailed, match="ConnectionError: no network"):
        await kit.finish(handle)

    assert outage.trip.log == ["book flight", "cancel flight"]


async def test_saga_without_compensations_is_retried_after_an_unrecorded_failure(app: App, kit: Kit) -> None:
    outage = Outage(Trip())

    @app.task
    async def task() -> str:
        return await outage.travel(add=False)

    assert await kit.run(task) == "hotel"
    assert outage.trip.log == ["book flight", "book hotel"]


async def test_nested_saga_compensates_for_the_recorded_failure_after_a_crash(app: App, kit: Kit) -> None:
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


async def test_failed_compensation_is_reported_with_the_cause_and_the_others_run(app: App, memory_kit: Kit) -> None:
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


async def test_replay_after_a_compensation_starts_from_the_beginning(app: App, kit: Kit) -> None:
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


async def test_replay_after_a_compensation_may_start_from_a_named_step(app: App, kit: Kit) -> None:
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


async def test_timeout_of_a_step_is_a_recorded_failure(app: App, memory_kit: Kit) -> None:
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


async def test_plain_step_past_its_timeout_keeps_running_and_its_result_is_dropped(app: App, memory_kit: Kit) -> None:
    may_finish, ended = threading.Event(), threading.Event()

    @step.policy(timeout=0.01, retries=0)
    def slow() -> str:
        may_finish.wait(20)
        ended.set()
        return "too late"

    @app.task
    async def task() -> str:
        try:
            return await step(slow)
        except StepFailed:
            return "timed out"

    assert await memory_kit.run(task) == "timed out"
    assert not ended.is_set()
    may_finish.set()
    assert await asyncio.to_thread(ended.wait, 20)


async def test_plain_step_past_its_timeout_sees_that_it_is_cancelled(app: App, memory_kit: Kit) -> None:
    may_finish, flags_read = threading.Event(), threading.Event()
    cancelled_flags: list[bool] = []

    @step.policy(timeout=0.01, retries=0)
    def slow() -> None:
        cancelled_flags.append(current().cancelled)
        may_finish.wait(20)
        cancelled_flags.append(current().cancelled)
        flags_read.set()

    @app.task
    async def task() -> None:
        with pytest.raises(StepFailed):
            await step(slow)
        may_finish.set()
        await asyncio.to_thread(flags_read.wait, 20)

    await memory_kit.run(task)

    assert cancelled_flags == [False, True]


async def test_step_past_its_timeout_is_retried(app: App, memory_kit: Kit) -> None:
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
