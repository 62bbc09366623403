"""Run an operation under a fault, and compare the store's contents with those after an undisturbed run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from flowfabric.engine import Engine, FlowFabricError, Unavailable
from flowfabric.testing import VirtualClock
from tests.faults.operations import Operation
from tests.faults.store_dump import Camera, Picture, camera_on, picture, wipe
from tests.stores import TestStore, opened

Call = Callable[[], Awaitable[BaseException | None]]
Fault = Callable[[Call], Awaitable[BaseException | None]]


@dataclass(frozen=True)
class Shots:
    """The store's contents after the disturbed call and after its repeat, and the error of the disturbed call."""

    after: Picture
    repeated: Picture
    error: BaseException | None


@dataclass(frozen=True)
class Whole:
    """The store's contents before and after an undisturbed call."""

    before: Picture
    after: Picture


@dataclass(frozen=True)
class Bench:
    """An engine that arranges the state, an engine whose call is disturbed, and a camera on their store.

    `earlier` holds the asyncio tasks that existed before the bench was opened.
    """

    engine: Engine
    disturbed_engine: Engine
    clock: VirtualClock
    camera: Camera
    earlier: set[asyncio.Task[Any]]

    async def whole(self, operation: Operation, fault: Fault) -> Whole:
        """Run the operation undisturbed.

        Here `fault` causes no failure. It only counts the points at which the operation could fail.
        """
        await wipe(self.camera)
        since, subject = await self._arranged(operation)
        before = await picture(self.camera, since)
        assert await fault(lambda: self._outcome(operation, subject)) is None
        await quiet(self.earlier)
        after = await picture(self.camera, since)
        assert await self._outcome(operation, subject) is None
        await quiet(self.earlier)
        assert await picture(self.camera, since) == after, "a repeated call must not change anything"
        return Whole(before, after)

    async def disturbed(self, operation: Operation, fault: Fault) -> Shots:
        """Run the operation under the fault, and repeat it without the fault if it failed."""
        await wipe(self.camera)
        since, subject = await self._arranged(operation)
        error = await fault(lambda: self._outcome(operation, subject))
        await settled(self.disturbed_engine, self.earlier)
        after = await picture(self.camera, since)
        if error is None:
            return Shots(after, after, None)
        again = await self._outcome(operation, subject)
        await quiet(self.earlier)
        assert again is None, f"the call repeated after {error!r} raised {again!r}"
        return Shots(after, await picture(self.camera, since), error)

    async def _arranged(self, operation: Operation) -> tuple[Any, Any]:
        since = self.clock.now()
        subject = await operation.arrange(self.engine, self.clock)
        return since, subject

    async def _outcome(self, operation: Operation, subject: Any) -> BaseException | None:
        """Return the error that the call raised, or the first refusal among its results."""
        try:
            result = await operation.act(self.disturbed_engine, subject)
        except FlowFabricError as error:
            return error
        results = result if isinstance(result, list) else []
        return next((item for item in results if isinstance(item, FlowFabricError)), None)


@asynccontextmanager
async def opened_bench(
    store: TestStore, clock: VirtualClock, disturbed_engine: Engine | None = None
) -> AsyncIterator[Bench]:
    """Yield a bench on the store.

    By default the engine that arranges the state is also the engine whose call is disturbed.
    """
    earlier = asyncio.all_tasks()
    async with opened(store, clock) as engine:
        camera = await camera_on(store)
        yield Bench(engine, disturbed_engine or engine, clock, camera, earlier)
        await camera.close()


def check(point: str, whole: Whole, shots: Shots) -> None:
    """Assert that the call took effect completely, or not at all if it raised an error.

    After the repeat, the effect must be complete.
    """
    is_expected = shots.error is None or isinstance(shots.error, (Unavailable, asyncio.CancelledError))
    assert is_expected, f"{point}: raised {shots.error!r}"
    allowed = (whole.before, whole.after) if shots.error else (whole.after,)
    assert shots.after in allowed, f"{point}: the call was written in part"
    assert shots.repeated == whole.after, f"{point}: the repeated call had another effect"


async def settled(engine: Engine, earlier: set[asyncio.Task[Any]]) -> None:
    """Wait until the tasks and the SQLite writer jobs that an ended call left behind are done."""
    await quiet(earlier)
    await engine._context.store.run(_nothing)


async def _nothing(_: object) -> None:
    return None


async def quiet(earlier: set[asyncio.Task[Any]]) -> None:
    """Wait until all tasks have ended, except the tasks in `earlier` and the listeners. A listener runs until its
    engine is closed. All tests of a process share one event loop, and the tasks of other tests may never end.
    """
    while tasks := {
        task
        for task in asyncio.all_tasks() - earlier - {asyncio.current_task()}
        if task.get_name() != "flowfabric-listener"
    }:
        await asyncio.wait(tasks)
