"""Decisions about runs that could not continue: their code diverged, or they failed inside the engine's own code.

run could not continue ──► delayed, same attempt ──► another worker, or the same one later
                      └──► held with the report, once waiting longer is unlikely to help

Earlier postponements are read from the history of the execution, so they survive every process.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any

from flowfabric.core.executions.decision import Decision, make_decision
from flowfabric.core.executions.outcomes import Delayed, Held
from flowfabric.core.executions.records import Event, Execution, Fence
from flowfabric.core.executions.requests import Step, digest, step_parts
from flowfabric.core.executions.transitions import DELAY, HOLD_OWN, apply_transition
from flowfabric.core.workers import WorkerInfo, missing_capabilities

DIVERGED = "diverged"
RUN_FAILED = "run_failed"
MAX_DIVERGED_FOR = timedelta(minutes=15)
MAX_FAILED_RUNS = 5
FAILED_RUN_PAUSE = timedelta(seconds=5)
MAX_POSTPONEMENTS = 500
_DELAYED = DELAY.event[1]
_EPOCHS_PER_LEASE = 2  # A claim and the end of its lease add one each.
_FIRST_PAUSE = timedelta(seconds=0.25)
_MAX_DOUBLINGS = 5
_MAX_EVENT_CHARACTERS = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Postponement:
    """A worker's request to run its execution later, because this run could not continue.

    `version` is the version of the worker's code. `after` replaces the usual pause.
    """

    fence: Fence
    reason: str
    report: str
    version: str
    after: timedelta | None = None
    steps: tuple[Step, ...] = ()

    def digest(self) -> str:
        return digest("postpone", self.reason, self.report, self.version, *step_parts(self.steps))


@dataclass(frozen=True, slots=True)
class Divergence:
    """A series of divergences without progress between them.

    `since` is the time of the first one. `versions` are the code versions that diverged, and `waits_for` are the other
    versions that live workers had.
    """

    since: datetime
    versions: tuple[str, ...]
    waits_for: tuple[str, ...]
    number: int


@dataclass(frozen=True, slots=True)
class Setbacks:
    """The runs of an execution that could not continue, according to its history.

    `is_retrying` is True if the last run failed, and the execution has not run since then.
    """

    divergence: Divergence | None = None
    failed_runs: int = 0
    is_retrying: bool = False


NO_SETBACKS = Setbacks()


def decide_postpone(
    execution: Execution,
    request: Postponement,
    setbacks: Setbacks,
    progress: int,
    others: Collection[str],
    now: datetime,
) -> Decision[Delayed | Held]:
    """Delay the execution, or hold it with the report. No attempt is used.

    `progress` grows whenever a run opens a step or ends one. `others` are the code versions of the live workers that
    could run the execution. Diverged code waits for a worker with another version.
    """
    if request.reason == DIVERGED:
        return _decide_diverged(execution, request, setbacks.divergence, progress, others, now)
    if setbacks.failed_runs >= MAX_FAILED_RUNS:
        return _hold(execution, request, now)
    pause = FAILED_RUN_PAUSE if request.after is None else request.after
    return _delay(execution, request, now + pause, now, {"failed_runs": setbacks.failed_runs + 1})


def find_setbacks(execution: Execution, progress: int, earlier: Sequence[Event]) -> Setbacks:
    """Return the setbacks in the events of earlier postponements and holds, which are ordered from new to old.

    Events before a hold do not count, because an operator has continued the execution since then.
    """
    postponed = list(takewhile(lambda event: event.name == _DELAYED, earlier))
    attempt = (execution.generation, execution.attempt_index)
    failed = [event for event in postponed if event.reason == RUN_FAILED]
    number = sum((event.generation, event.attempt_index) == attempt for event in failed)
    is_retrying = bool(failed) and failed[0] is postponed[0] and failed[0].epoch == execution.epoch
    return Setbacks(_find_divergence(execution, progress, postponed), number, is_retrying)


def _find_divergence(execution: Execution, progress: int, postponed: Iterable[Event]) -> Divergence | None:
    """Return the series of divergences that the execution is in, or None.

    A run with matching code ends a series. Such a run has recorded steps, and its lease lies between two divergences.
    """
    series = list[Event]()
    # The epoch that follows the previous end of a lease, if there was no other lease since then.
    epoch = execution.epoch - _EPOCHS_PER_LEASE + 1 if execution.lease is not None else execution.epoch
    for event in postponed:
        details = event.details or {}
        if event.reason != DIVERGED or event.generation != execution.generation:
            break
        if event.epoch != epoch and details["step_seq"] != progress:
            break
        series.append(event)
        epoch, progress = (event.epoch or 0) - _EPOCHS_PER_LEASE, details["step_seq"]
    if not series:
        return None
    facts = [event.details or {} for event in reversed(series)]
    versions = dict.fromkeys(str(each["code_version"]) for each in facts)
    return Divergence(series[-1].at, tuple(versions), tuple(facts[-1]["waits_for"]), len(series))


def can_run(worker: WorkerInfo, execution: Execution, requires: Iterable[str]) -> bool:
    """Return True if a worker on the execution's lane could run the execution."""
    return worker.knows(execution.kind) and not missing_capabilities(requires, worker.capabilities)


def _decide_diverged(
    execution: Execution,
    request: Postponement,
    earlier: Divergence | None,
    progress: int,
    others: Collection[str],
    now: datetime,
) -> Decision[Delayed | Held]:
    diverged = {request.version, *(earlier.versions if earlier else ())}
    remaining = sorted(set(others) - diverged)
    if not remaining or (earlier is not None and now - earlier.since >= MAX_DIVERGED_FOR):
        return _hold(execution, request, now)
    pause = _FIRST_PAUSE * 2 ** min(_MAX_DOUBLINGS, earlier.number if earlier else 0)
    details = {"code_version": request.version, "waits_for": remaining, "step_seq": progress}
    return _delay(execution, request, now + pause, now, details)


def _delay(
    execution: Execution, request: Postponement, until: datetime, now: datetime, details: dict[str, Any]
) -> Decision[Delayed | Held]:
    after = apply_transition(execution, DELAY, now, digest=request.digest(), until=until, ready_at=until)
    facts = {"until": until.isoformat(), "report": request.report[:_MAX_EVENT_CHARACTERS], **details}
    return make_decision(Delayed(until), execution, after, DELAY, reason=request.reason, details=facts)


def _hold(execution: Execution, request: Postponement, now: datetime) -> Decision[Delayed | Held]:
    assert execution.lease is not None, "the caller has checked that the fence owns the lease"
    after = apply_transition(execution, HOLD_OWN, now, digest=request.digest(), hold_reason=request.reason)
    principal, details = execution.lease.worker.instance, {"report": request.report}
    return make_decision(
        Held(request.reason), execution, after, HOLD_OWN, principal=principal, reason=request.reason, details=details
    )
