"""The log of executions. Each record has the execution, its task, step, attempt and namespace as fields."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any

from flowfabric.core.executions.outcomes import Ended, Lease, RetryScheduled
from flowfabric.core.executions.states import State
from flowfabric.core.validation import escape
from flowfabric.values import failures, guards
from flowfabric.values.errors import ExecutionFailed
from flowfabric.values.records import ErrorInfo

LOG = logging.getLogger("flowfabric")
_MAX_CHARACTERS = 300


def log_fields(lease: Lease, step: str | None = None) -> dict[str, Any]:
    """Return the fields of a log record about the execution of a lease."""
    return {
        "execution_id": str(lease.execution_id),
        "task": lease.kind,
        "step": step,
        "attempt": lease.attempt_index,
        "namespace": lease.namespace,
    }


def log_execution(
    lease: Lease, level: int, end: str, *args: object, step: str | None = None, shown: BaseException | None = None
) -> None:
    """Log a message that begins with the name of the task and the id of the execution, and ends with `end`.

    A handler may read any attribute of the error in `shown`, which may raise. That must not change how a run ends.
    """
    trace = None if shown is None else (type(shown), shown, guards.traceback_of(shown))
    text, args = "%s %s" + end, (lease.kind, str(lease.execution_id), *args)
    guards.guarded(lambda: LOG.log(level, text, *args, exc_info=trace, extra=log_fields(lease, step)), None)


def log_failed_try(
    lease: Lease, path: str, tries: tuple[int, int], error: Exception, info: ErrorInfo, due: datetime | None
) -> None:
    """Warn of a failed try of a step. `tries` has the number of the try and the number of possible tries."""
    end = "no further try" if due is None else _next_try(due)
    arguments = (path, *tries, end, _describe_with_place(error, info))
    log_execution(lease, logging.WARNING, " failed in step %s, try %d of %d, %s: %s", *arguments, step=path)


def log_failed_attempt(
    lease: Lease, outcome: RetryScheduled | Ended | None, error: BaseException, info: ErrorInfo
) -> None:
    """Warn of an attempt that will be retried, or log the failure of the execution with its traceback.

    Without an outcome the lease was lost, so nothing has failed.
    """
    if isinstance(outcome, RetryScheduled):
        number = f", try {outcome.retry} of {outcome.max_retries + 1}" if outcome.retry else ""
        arguments = (number, _next_try(outcome.at), _describe_with_place(error, info))
        log_execution(lease, logging.WARNING, " failed%s, %s: %s", *arguments)
    elif outcome is not None and outcome.state is State.FAILED:
        shown = error if failures.is_printable(error) else ExecutionFailed(info)
        log_execution(lease, logging.ERROR, " failed: %s", _describe(info), shown=shown)


def _next_try(due: datetime) -> str:
    return f"next try at {due:%Y-%m-%d %H:%M:%S} UTC"


def _describe_with_place(error: BaseException, info: ErrorInfo) -> str:
    place = failures.find_place(error)
    return f"{_describe(info)} ({place})" if place else _describe(info)


def _describe(info: ErrorInfo) -> str:
    line = escape(" ".join(f"{info.type}: {info.message}".split()))
    return line if len(line) <= _MAX_CHARACTERS else f"{line[:_MAX_CHARACTERS]}…"
