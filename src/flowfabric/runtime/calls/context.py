"""Calls that need no await: the time, random values, the current execution, and whether code is new to it."""

from __future__ import annotations

import hashlib
import json
import logging
from datetime import datetime
from random import Random
from uuid import UUID

from flowfabric.core.errors import InvalidRequest
from flowfabric.core.executions.requests import StepStatus
from flowfabric.runtime.branch import BRANCH, STEP, Branch, require_branch
from flowfabric.runtime.journal import CallId
from flowfabric.runtime.log import log_fields
from flowfabric.runtime.progress import send_report, send_report_later
from flowfabric.store.forks import check_not_forked
from flowfabric.values.records import TaskContext


def now() -> datetime:
    """Return the store's time at the first run of this call, and the same time in every later run."""
    branch = require_branch("now")
    call_id = _unordered_call_id(branch, "now")
    record = branch.run.calls.journal.get(call_id.path)
    if record is not None:
        return datetime.fromisoformat(json.loads(record.value))
    now_at = branch.run.now()
    value = json.dumps(now_at.isoformat()).encode()
    branch.run.on_loop(branch.run.record_writer.enqueue, call_id.record(StepStatus.OK, value=value))
    return now_at


def uuid4() -> UUID:
    """Return a random id that is the same in every run."""
    return UUID(bytes=_derive_bytes("uuid4")[:16], version=4)


def rng() -> Random:
    """Return a random generator that yields the same numbers in every run."""
    return Random(_derive_bytes("rng"))


def changed(name: str, /) -> bool:
    """Return True if the execution had not passed this point when the code changed.

    Put new durable calls under `if changed(…)`, so that older executions skip them.
    """
    branch = require_branch("changed")
    branch.run.calls.check_alive(branch)
    scope, journal = branch.scope, branch.run.calls.journal
    call_id = scope.unordered(f"changed[{name}]", "changed")
    if journal.get(call_id.path) is not None:
        return True
    if journal.has_later_call(scope):
        return False
    branch.run.on_loop(branch.run.record_writer.enqueue, call_id.record(StepStatus.OK))
    return True


def progress(percent: float, message: str = "") -> None:
    """Report the progress of the task, also inside a step. Repeated calls are ignored while the task replays.

    Inside steps, the newest report is stored at most once a second, and before the execution waits or ends.
    """
    step = STEP.get()
    if step is None:
        branch = require_branch("progress")
        run, is_ignored = branch.run, branch.is_replaying
        run.calls.check_alive(branch)
    else:
        check_not_forked(step.run.forks)
        run, is_ignored = step.run, step.is_abandoned
    if not 0 <= percent <= 100:
        raise InvalidRequest("out_of_range", "percent must be between 0 and 100", field="percent")
    if not is_ignored:
        send = send_report if step is None else send_report_later
        run.loop.call_soon_threadsafe(send, run, (int(percent), message))


def current() -> TaskContext:
    """Return the id, attempt, epoch and other data of the current execution.

    Its `idempotency_key` is the key of the current step, or the id of the execution outside of steps.
    """
    branch, step = BRANCH.get(), STEP.get()
    if branch is None:
        raise InvalidRequest("outside_of_task", "current works only inside a task or a step")
    run = branch.run
    lease = run.lease
    cancelled = run.is_over or run.cancel_due_at is not None or (step is not None and step.is_abandoned)
    return TaskContext(
        execution_id=lease.execution_id,
        kind=lease.kind,
        attempt=lease.attempt_index,
        epoch=lease.ordered_epoch,
        replaying=branch.is_replaying,
        cancelled=cancelled,
        idempotency_key=step.key if step is not None else str(lease.execution_id),
        tags=lease.tags,
    )


def _add_fields(record: logging.LogRecord) -> bool:
    """Add the fields of the execution to a log record.

    Return False while the code only repeats recorded calls, since an earlier run has logged its messages.
    """
    branch, step = BRANCH.get(), STEP.get()
    if branch is None:
        return True
    for name, value in log_fields(branch.run.lease, step.path if step else None).items():
        record.__dict__.setdefault(name, value)
    # Code that outlives its run, such as the thread of a plain step, may still log.
    return branch.run.is_over or not branch.is_replaying


logger = logging.getLogger("flowfabric.task")
logger.addFilter(_add_fields)


def _unordered_call_id(branch: Branch, name: str) -> CallId:
    branch.run.calls.check_alive(branch)
    return branch.scope.unordered(branch.scope.label(name), name)


def _derive_bytes(name: str) -> bytes:
    branch = require_branch(name)
    call_id, run = _unordered_call_id(branch, name), branch.run
    return hashlib.sha256(f"{run.lease.execution_id}/{run.seed}/{call_id.path}".encode()).digest()
