"""Assertions for conformance tests about errors, events, attempts, and unchanged tables."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from flowfabric.engine import (
    ChildSubmission,
    Engine,
    Event,
    Fence,
    FlowFabricError,
    Refused,
    Step,
    StepRetry,
    StepStatus,
    Submission,
)
from tests.scenarios import SITUATIONS
from tests.stores import TestStore, snapshot

ENDED = ("completed", "failed", "cancelled", "expired")
LIVE = [situation for situation in SITUATIONS if situation not in ENDED]


async def _asynchronously(connection: object) -> None:
    """Do nothing. This is a transaction body for PostgreSQL, which needs a coroutine function."""


def _at_once(connection: object) -> None:
    """Do nothing. This is a transaction body for SQLite, which needs a plain function."""


def taking_part(engine: Engine) -> Callable[[Any], Any]:
    """Return a function that joins a transaction of the engine and does nothing."""
    return _asynchronously if hasattr(engine._context.store, "_pool") else _at_once


def step_retry(name: str) -> tuple[list[StepRetry], list[Step]]:
    """Return the report of one failed try of a step, and the step's record."""
    at = datetime(2031, 1, 1, tzinfo=UTC)
    retry = StepRetry(step=name, tries=1, max_tries=4, at=at, message="OSError: down", category="OSError")
    return [retry], [Step(name, b"waits", status=StepStatus.OPEN)]


LATE_CHILD = ChildSubmission("late", Submission(kind="late"))

# Every fenced write of a worker.
FENCED: dict[str, Callable[[Engine, Fence], Coroutine[Any, Any, object]]] = {
    "renew": lambda engine, fence: engine.leases.renew(fence),
    "progress": lambda engine, fence: engine.leases.progress(fence, 50),
    "checkpoint": lambda engine, fence: engine.leases.checkpoint(fence, [Step("late")]),
    "complete": lambda engine, fence: engine.leases.complete(fence, b"late"),
    "complete with steps": lambda engine, fence: engine.leases.complete(fence, b"late", steps=[Step("late")]),
    "fail": lambda engine, fence: engine.leases.fail(fence, "late"),
    "delay": lambda engine, fence: engine.leases.delay(fence, after="1m"),
    "suspend": lambda engine, fence: engine.leases.suspend(fence, ["late"]),
    "suspend with steps": lambda engine, fence: engine.leases.suspend(fence, ["late"], key="k", steps=[Step("late")]),
    "create waitpoint": lambda engine, fence: engine.waitpoints.create(fence, "late"),
    "declare signals": lambda engine, fence: engine.waitpoints.declare(fence, ["late"]),
    "create waitpoints": lambda engine, fence: engine.waitpoints.create_many(fence, ["late"], steps=[Step("late")]),
    "skip signal": lambda engine, fence: engine.signals.skip(fence, 1, "late"),
    "submit children": lambda engine, fence: engine.leases.submit_children(fence, [LATE_CHILD]),
    "wait children": lambda engine, fence: engine.leases.wait_children(fence, [fence.execution_id]),
    "cancel children": lambda engine, fence: engine.leases.cancel_children(fence, [fence.execution_id], "late"),
    "transact": lambda engine, fence: engine.leases.transact(fence, taking_part(engine), lambda _: Step("late")),
    "hold": lambda engine, fence: engine.leases.hold(fence, "late", "late", steps=[Step("late")]),
    "postpone": lambda engine, fence: engine.leases.postpone(fence, "diverged", "late", version="late"),
    "continue with": lambda engine, fence: engine.leases.continue_with(fence, b"late", steps=[Step("late")]),
    "retry steps": lambda engine, fence: engine.leases.retry_steps(fence, *step_retry("late")),
    "release": lambda engine, fence: engine.leases.release(fence),
    "cancel": lambda engine, fence: engine.leases.cancel(fence, "late"),
}


async def refused(call: Awaitable[object], code: str, kind: type[FlowFabricError] = Refused) -> FlowFabricError:
    """Assert that the call raises an error of this kind with this code, and return the error."""
    error = await error_of(call)
    assert isinstance(error, kind)
    assert error.code == code, str(error)
    return error


async def error_of(call: Awaitable[object]) -> FlowFabricError:
    """Return the error that a call raises."""
    with pytest.raises(FlowFabricError) as caught:
        await call
    return caught.value


async def every_write_is_refused(engine: Engine, fence: Fence, code: str) -> None:
    """Assert that every fenced write fails with this code and changes nothing."""
    before = await engine.executions.describe(fence.execution_id)
    for name, write in FENCED.items():
        error = await refused(write(engine, fence), code)
        assert error.fields["epoch"] == before.epoch, name
        assert error.fields["state"] == before.state, name
    assert await engine.executions.describe(fence.execution_id) == before
    assert "late" not in {step.name for step in await engine.executions.steps(fence.execution_id)}


async def last_event(engine: Engine, id_: UUID) -> Event:
    """Return the newest event of an execution."""
    return (await engine.executions.history(id_))[-1]


async def event_names(engine: Engine, id_: UUID) -> list[str]:
    """Return the events of an execution as `family.name`, in order."""
    return [f"{event.family}.{event.name}" for event in await engine.executions.history(id_)]


@asynccontextmanager
async def nothing_written(store: TestStore) -> AsyncIterator[None]:
    """Assert that the block changes no table."""
    before = await snapshot(store)
    yield
    assert await snapshot(store) == before


async def stored_row(store: TestStore, id_: UUID) -> dict[str, Any]:
    """Return the execution's row as stored in the database."""
    [row] = await store.query("SELECT * FROM ff.execution WHERE id = ?", id_)
    return row


async def refusals(engine: Engine, fence: Fence) -> set[str]:
    """Call every fenced write of a worker, and return the set of error codes."""
    codes = set()
    for write in (
        engine.leases.renew(fence),
        engine.leases.progress(fence, 1),
        engine.leases.checkpoint(fence, [Step("s")]),
        engine.leases.complete(fence, b"late"),
        engine.leases.fail(fence, "late"),
        engine.leases.release(fence),
        engine.leases.delay(fence, after="1m"),
        engine.leases.cancel(fence, "late"),
    ):
        with pytest.raises(Refused) as refused:
            await write
        codes.add(refused.value.code)
    return codes
