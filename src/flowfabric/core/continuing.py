"""What a worker decides about the execution as a whole: to hold it for a person, or to begin anew with other input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from flowfabric.core.decisions import Decision, decided
from flowfabric.core.fences import digest
from flowfabric.core.frozen import replace
from flowfabric.core.outcomes import Continued, Held
from flowfabric.core.records import Execution, Fence
from flowfabric.core.requests import Step, step_parts
from flowfabric.core.transitions import CONTINUE, HOLD_OWN, move
from flowfabric.core.waits import WaitChanges, Waitpoint, WaitpointKind, WaitpointState

REPORT_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnHold:
    """A worker's wish that a person looks at what it reports before anybody goes on."""

    fence: Fence
    reason: str
    report: str
    steps: tuple[Step, ...] = ()

    def digest(self) -> str:
        return digest("hold", self.reason, self.report, *step_parts(self.steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """A worker's wish to begin anew as the next generation, with this input and these first steps."""

    fence: Fence
    payload: bytes
    encoding: str
    steps: tuple[Step, ...] = ()

    def digest(self) -> str:
        return digest("continue_with", self.payload, self.encoding, *step_parts(self.steps))


def decide_own_hold(execution: Execution, request: OwnHold, now: datetime) -> Decision[Held]:
    """The same attempt goes on when somebody unholds it; the event keeps the report."""
    assert execution.lease is not None, "whoever asks owns the lease"
    after = move(execution, HOLD_OWN, now, digest=request.digest(), hold_reason=request.reason)
    return decided(
        Held(request.reason), execution, after, HOLD_OWN, principal=execution.lease.worker.instance,
        reason=request.reason, details={"report": request.report},
    )  # fmt: skip


def decide_continue(
    execution: Execution, request: Continuation, waitpoints: Sequence[Waitpoint], now: datetime
) -> Decision[Continued]:
    """The same attempt begins anew: what was counted for the old generation is not held against the new one, and its
    waitpoints close, but for the standing ones, which belong to the whole life."""
    after = move(
        execution, CONTINUE, now, digest=request.digest(), generation=execution.generation + 1,
        payload=request.payload, encoding=request.encoding, step_seq=len(request.steps), retry_count=0,
        reclaim_count=0, attempt_timeout_left=None, progress_percent=None, progress_message=None,
        failure_message=None, failure_category=None,
    )  # fmt: skip
    closed = tuple(
        replace(item, state=WaitpointState.CLOSED, closed_at=now, close_reason="continued")
        for item in waitpoints
        if item.kind is not WaitpointKind.STANDING
    )
    decision = decided(Continued(), execution, after, CONTINUE, details={"generation": after.generation})
    return replace(decision, waits=WaitChanges(moved=closed)) if closed else decision
