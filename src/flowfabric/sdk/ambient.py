"""What a task may ask without awaiting: the time, chance, where it is, and whether code is new to it."""

from __future__ import annotations

import hashlib
import json
import logging
from datetime import datetime
from random import Random
from typing import TYPE_CHECKING
from uuid import UUID

from flowfabric.core.errors import FlowFabricError, InvalidRequest
from flowfabric.core.requests import StepStatus
from flowfabric.sdk.journal import Made
from flowfabric.sdk.records import Current
from flowfabric.sdk.units import STEP, UNIT, Unit, require_unit

if TYPE_CHECKING:
    from flowfabric.sdk.run import Run


def now() -> datetime:
    """The store's time at the first run of this call, and the same in every later one."""
    unit = require_unit("now")
    made = _outside_the_order(unit, "now")
    record = unit.run.calls.journal.get(made.path)
    if record is not None:
        return datetime.fromisoformat(json.loads(record.value))
    moment = unit.run.now()
    value = json.dumps(moment.isoformat()).encode()
    unit.run.on_loop(unit.run.commits.ride, made.record(StepStatus.OK, value=value))
    return moment


def uuid4() -> UUID:
    """A random id that is the same in every run."""
    return UUID(bytes=_drawn("uuid4")[:16], version=4)


def rng() -> Random:
    """A source of chance that gives the same numbers in every run."""
    return Random(_drawn("rng"))


def changed(name: str, /) -> bool:
    """True for executions that had not passed this point when the code changed; guard new calls with it."""
    unit = require_unit("changed")
    unit.run.calls.check_alive(unit)
    scope, journal = unit.scope, unit.run.calls.journal
    made = scope.outside(f"changed[{name}]", "changed")
    if journal.get(made.path) is not None:
        return True
    if journal.passed(scope):
        return False
    unit.run.on_loop(unit.run.commits.ride, made.record(StepStatus.OK))
    return True


def progress(percent: float, message: str = "") -> None:
    """Tells how far the task is; ignored while it only repeats what is recorded."""
    unit = require_unit("progress")
    run = unit.run
    run.calls.check_alive(unit)
    if not 0 <= percent <= 100:
        raise InvalidRequest("out_of_range", "percent must be between 0 and 100", field="percent")
    if not unit.is_replaying:
        run.loop.call_soon_threadsafe(_tell_soon, run, int(percent), message)


def current() -> Current:
    """Which execution this is, which attempt and epoch; inside a step with its idempotency key."""
    unit, step = UNIT.get(), STEP.get()
    if unit is None:
        raise InvalidRequest("outside_of_task", "current works inside of a task or a step only")
    run = unit.run
    lease = run.lease
    cancelled = run.is_over or run.cancel_due_at is not None or (step is not None and step.is_left)
    return Current(
        execution_id=lease.execution_id, kind=lease.kind, attempt=lease.attempt_index, epoch=lease.epoch,
        replaying=unit.is_replaying, cancelled=cancelled,
        idempotency_key=step.key if step is not None else str(lease.execution_id), tags=lease.tags,
    )  # fmt: skip


def _tell_soon(run: Run, percent: int, message: str) -> None:
    telling = run.loop.create_task(_tell(run, percent, message))
    run.beside.add(telling)
    telling.add_done_callback(run.beside.discard)


async def _tell(run: Run, percent: int, message: str) -> None:
    try:
        await run.engine.leases.progress(run.lease.fence, percent, message or None)
    except FlowFabricError as error:
        logger.info("the progress of %s could not be told: %s", run.lease.execution_id, error)


class _SilentWhileReplaying(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        unit = UNIT.get()
        return unit is None or not unit.is_replaying


logger = logging.getLogger("flowfabric.task")
logger.addFilter(_SilentWhileReplaying())


def _outside_the_order(unit: Unit, name: str) -> Made:
    unit.run.calls.check_alive(unit)
    return unit.scope.outside(unit.scope.label(name), name)


def _drawn(name: str) -> bytes:
    unit = require_unit(name)
    made, run = _outside_the_order(unit, name), unit.run
    return hashlib.sha256(f"{run.lease.execution_id}/{run.seed}/{made.path}".encode()).digest()
