"""Whichever statement of an operation fails, all of the operation happens or nothing, and the engine stays usable."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from flowfabric import Engine, FlowFabricError, Unavailable
from flowfabric.testing import VirtualClock
from tests.faults.fuses import FAILURES, Fuse, fit_fuse
from tests.faults.operations import OPERATIONS, Operation
from tests.faults.pictures import Camera, Picture, camera_on, picture, wipe
from tests.faults.quiet import quiet
from tests.stores import TestStore, opened

RETRIED = ("serialization", "deadlock")


@dataclass
class Bench:
    """An engine with a fuse, a camera on its store, and the clock of both."""

    backend: str
    engine: Engine
    clock: VirtualClock
    fuse: Fuse
    camera: Camera

    async def disturbed(self, operation: Operation, at: int, failure: Any = None, *, after: bool = False) -> Shots:
        """One run of the operation on an empty store with the fuse set to that statement."""
        await wipe(self.camera)
        self.engine._context.routes.clear()
        since = self.clock.now()
        subject = await operation.arrange(self.engine, self.clock)
        before = None if at else await picture(self.camera, since)
        self.engine._context.routes.clear()
        self.fuse.arm(at, failure or RuntimeError, after=after)
        error = await outcome(operation, self.engine, subject)
        self.fuse.disarm()
        after_call = await picture(self.camera, since)
        if error is None and at:
            return Shots(before, after_call, after_call, error, self.fuse.blown)
        # The store answers again: the same call leads to the complete effect, whatever became of the first.
        assert await outcome(operation, self.engine, subject) is None
        return Shots(before, after_call, await picture(self.camera, since), error, self.fuse.blown)


@dataclass
class Shots:
    """The store before, after the disturbed call and after its repetition; what the call raised."""

    before: Picture | None
    after: Picture
    repeated: Picture
    error: BaseException | None
    blown: bool


async def outcome(operation: Operation, engine: Engine, subject: Any) -> BaseException | None:
    """What the call raised, or the first refusal among its answers."""
    try:
        answer = await operation.act(engine, subject)
    except FlowFabricError as error:
        return error
    finally:
        await quiet()
    answers = answer if isinstance(answer, list) else []
    return next((item for item in answers if isinstance(item, FlowFabricError)), None)


@pytest.fixture
async def bench(store: TestStore, clock: VirtualClock) -> AsyncIterator[Bench]:
    async with opened(store, clock) as engine:
        fuse, camera = fit_fuse(engine), await camera_on(store)
        yield Bench(store.name, engine, clock, fuse, camera)
        await camera.close()


async def test_all_or_nothing_at_every_statement_of_every_operation(bench: Bench, run_all: bool) -> None:
    points = 0
    for name, operation in OPERATIONS.items():
        whole = await bench.disturbed(operation, 0)
        statements = list(bench.fuse.statements)
        assert whole.error is None and whole.after == whole.repeated, f"{name} is not safe to repeat"
        for at in range(1, len(statements) + 1):
            for kind, after in ways(at, run_all):
                shots = await bench.disturbed(operation, at, FAILURES[bench.backend][kind], after=after)
                point = f"{name}: {kind} {'after' if after else 'before'} {at}: {statements[at - 1][:60]}"
                assert shots.blown, f"{point}: was not reached"
                check(point, whole, shots)
                points += 1
    assert points > 300


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_a_conflict_at_any_statement_is_retried_and_never_seen(bench: Bench, run_all: bool) -> None:
    for turn, (name, operation) in enumerate(OPERATIONS.items()):
        whole = await bench.disturbed(operation, 0)
        number = len(bench.fuse.statements)
        for at in range(1, number + 1) if run_all else [1 + turn % number]:
            kind = RETRIED[at % 2]
            shots = await bench.disturbed(operation, at, FAILURES["postgres"][kind])
            assert shots.error is None, f"{name}: {kind} at {at} was seen as {shots.error}"
            assert shots.after == whole.after, f"{name}: {kind} at {at}"


def ways(at: int, run_all: bool) -> list[tuple[str, bool]]:
    """How a statement fails: with everything, both kinds before and after; else each kind at every other one."""
    if run_all:
        return [(kind, after) for kind in ("outage", "refusal") for after in (False, True)]
    first, second = ("outage", "refusal") if at % 2 else ("refusal", "outage")
    return [(first, False), (second, True)]


def check(point: str, whole: Shots, shots: Shots) -> None:
    assert shots.error is None or isinstance(shots.error, Unavailable), f"{point}: raised {shots.error!r}"
    allowed = (whole.before, whole.after) if shots.error else (whole.after,)
    assert shots.after in allowed, f"{point}: half a write"
    assert shots.repeated == whole.after, f"{point}: repeated, it did something else"
