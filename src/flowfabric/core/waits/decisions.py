"""Decisions of approvers. A decision is a signal named `approve` or `reject` at the waitpoint of an approval.

The first decision of an approver counts, by any route: all decisions of one approver at a waitpoint have the same
idempotency key. A waitpoint with an approver takes one decision. A waitpoint without an approver takes one from each
source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal, TypeAlias
from uuid import UUID

from flowfabric.core.errors import InvalidRequest, Refused
from flowfabric.core.executions.outcomes import Accepted, DuplicateSignal
from flowfabric.core.executions.records import Execution
from flowfabric.core.executions.states import TERMINAL, State
from flowfabric.core.executions.views import WaitpointView, view_waitpoint
from flowfabric.core.fast_dataclass import replace
from flowfabric.core.tokens.token import ParsedToken
from flowfabric.core.waits.evaluate import APPROVE, REJECT, ApprovalProgress, approval_progress, find_approval
from flowfabric.core.waits.records import StoredSignal, Suspension, Waitpoint, WaitpointKind, WaitpointState
from flowfabric.core.waits.signals import SignalRequest
from flowfabric.core.waits.sources import OPERATOR, UNKNOWN, format_sender, format_source, make_source

DecisionWord: TypeAlias = Literal["approve", "reject"]
DECISION_KEY = "decision"
APPROVAL = "approval"
# Only the first match in a key counts, because the rest of the key is a name that the user chose.
_PURPOSE = re.compile(r"(?:^|/)(approval|callback|signal):")


@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """The decision of one approver, with its comment and time.

    `sender` is who sent it, such as `operator:ann`, if that is known.
    """

    by: str
    approve: bool
    comment: str
    at: datetime
    sender: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decide:
    """A request to decide an approval. Without a token, `principal` is known to the caller, else it is only claimed.

    `approver` is for whom the principal decides. `signal_id` is the id of the signal that records the decision.
    """

    signal_id: UUID
    waitpoint_id: UUID
    token: ParsedToken | None
    decision: DecisionWord
    comment: str = field(repr=False)
    principal: str | None
    approver: str | None


@dataclass(frozen=True, slots=True)
class Decided:
    """The decision of an approver that counts.

    `repeated` is True if an earlier call made the decision, so that this call changed nothing. `delivery` is the
    outcome for the signal of the decision. If the engine repeated this call after a lost reply, it is `DuplicateSignal`
    although the decision is new.
    """

    execution_id: UUID
    waitpoint_id: UUID
    approval: str
    decision: ApprovalDecision
    delivery: Accepted | DuplicateSignal
    repeated: bool


class WaitEnd(StrEnum):
    """Why a waitpoint accepts no further signals."""

    DECIDED = "decided"
    EXPIRED = "expired"
    ENDED = "ended"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitpointDescription(WaitpointView):
    """A waitpoint with the facts that its approver needs.

    `task` and `execution_state` are those of the execution. `decisions` were made at this waitpoint, `progress` counts
    those of all approvers. `end` is None while the waitpoint takes signals.
    """

    task: str
    execution_state: State
    decisions: tuple[ApprovalDecision, ...]
    progress: ApprovalProgress | None
    end: WaitEnd | None

    @property
    def purpose(self) -> str | None:
        """`approval`, `callback` or `signal`, or None if the key of the waitpoint names no purpose."""
        return purpose_of(self.key)

    @property
    def approval(self) -> str:
        """The name of the approval."""
        return approval_name(self.key, self.approver)

    @property
    def end_reason(self) -> str:
        """Why the waitpoint accepts no further signals, for use in a sentence."""
        if self.end is WaitEnd.DECIDED and self.progress is not None and self.progress.result is not None:
            return self.progress.result
        if self.end is WaitEnd.EXPIRED and self.expires_at is not None:
            return f"it expired at {self.expires_at:%Y-%m-%d %H:%M} UTC"
        if self.end is WaitEnd.ENDED:
            return f"its task has ended ({self.execution_state})"
        return "the task no longer waits for it"


def purpose_of(key: str) -> str | None:
    """Return the purpose in the key of a task's waitpoint. Other programs may use keys without a purpose."""
    match = _PURPOSE.search(key)
    return None if match is None else match[1]


def approval_name(key: str, approver: str | None) -> str:
    """Return the name in the key of an approval, without the branch and the approver."""
    match = _PURPOSE.search(key)
    name = key if match is None else key[match.end() :]
    return name.removesuffix(f"[{approver}]") or key


def as_decision(request: SignalRequest, waitpoint: Waitpoint) -> SignalRequest:
    """Return the signal with the key of a decision if it is one, however it was sent.

    A signal with another name cannot take that key.
    """
    is_decision = request.name in (APPROVE, REJECT)
    if not is_decision and request.key != DECISION_KEY:
        return request
    if waitpoint.kind is not WaitpointKind.ADDRESSED or purpose_of(waitpoint.key) != APPROVAL:
        return request
    return replace(request, key=_decision_key(request, waitpoint) if is_decision else f"signal\n{DECISION_KEY}")


def make_decision_signal(request: Decide, waitpoint: Waitpoint) -> SignalRequest:
    """Return the signal of a decision. Raise unless the waitpoint is of an approval, and of this approver."""
    if waitpoint.kind is not WaitpointKind.ADDRESSED or purpose_of(waitpoint.key) not in (APPROVAL, None):
        message = f"waitpoint {waitpoint.key!r} is not an approval; send it a signal instead"
        raise InvalidRequest("not_an_approval", message, waitpoint=waitpoint.key)
    _check_approver(request, waitpoint)
    is_known = request.token is None
    signal = SignalRequest(
        id=request.signal_id,
        name=request.decision,
        payload=json.dumps({"comment": request.comment}).encode(),
        category="approval",
        source_type="token" if request.principal is None else OPERATOR,
        source_identity=request.principal or UNKNOWN,
        created_at=None,
        by_engine=is_known,
        principal=request.principal if is_known else None,
    )
    return replace(signal, key=_decision_key(signal, waitpoint))


def read_decision(signal: StoredSignal, approver: str | None) -> ApprovalDecision:
    """Return the decision in a signal. Without an approver, the sender is the one who decides."""
    by = signal.source_identity if approver is None else approver
    sender = format_source(signal) if approver is None else format_sender(signal)
    return ApprovalDecision(by, signal.name == APPROVE, _read_comment(signal.payload), signal.accepted_at, sender)


def describe_waitpoint(
    waitpoint: Waitpoint,
    execution: Execution,
    suspension: Suspension | None,
    approvers: Mapping[str, str],
    signals: Sequence[StoredSignal],
    *,
    decisions: Sequence[StoredSignal],
    now: datetime,
    by_token: bool,
) -> WaitpointDescription:
    """Return everything about a waitpoint.

    `suspension` is the last one that bound the waitpoint, and `signals` are its signals. `approvers` maps the keys of
    its waitpoints. An escalated wait has expired for the holder of a token only.
    """
    approval = None if suspension is None else find_approval(suspension.condition, waitpoint.key)
    progress = None
    if approval is not None:
        progress = approval_progress(approval, [signal.facts for signal in signals], approvers)
    view = view_waitpoint(waitpoint, suspension)
    expires_at = min((time for time in _ends(waitpoint) if time is not None), default=None)
    return WaitpointDescription(
        **{name: getattr(view, name) for name in WaitpointView.__slots__} | {"expires_at": expires_at},
        task=execution.kind,
        execution_state=execution.state,
        decisions=tuple(read_decision(signal, waitpoint.approver) for signal in decisions),
        progress=progress,
        end=_find_end(waitpoint, execution, progress, now, by_token=by_token),
    )


def has_token_ended(waitpoint: Waitpoint, now: datetime) -> bool:
    """Return True if the task takes no decision after a time that has passed."""
    return waitpoint.token is not None and waitpoint.token.ends_at is not None and waitpoint.token.ends_at <= now


def approval_closed(description: WaitpointDescription) -> Refused:
    """Return the error for a decision that comes too late."""
    message = f'approval "{description.approval}" accepts no further decisions: {description.end_reason}'
    return Refused("approval_closed", message, execution_id=description.execution_id, end=description.end)


def _check_approver(request: Decide, waitpoint: Waitpoint) -> None:
    """Raise if the decision is for another approver than the one of the waitpoint."""
    name, approver = approval_name(waitpoint.key, waitpoint.approver), waitpoint.approver
    own = approver if request.token is not None else request.principal
    wanted = own if request.approver is None else request.approver
    if wanted == (approver or own):
        return
    if approver is None:
        message = f'approval "{name}" has no approvers, so everyone decides as themselves; omit "{wanted}"'
    else:
        message = f'approval "{name}" waits for "{approver}", not for "{wanted}"; decide as "{approver}" if you may'
    raise Refused("not_the_approver", message, approval=name, approver=approver)


def _decision_key(request: SignalRequest, waitpoint: Waitpoint) -> str:
    """Return the key that all decisions of one approver share.

    Holders of a token cannot send the line break in it, so they cannot take the key of another source.
    """
    if waitpoint.approver is not None:
        return DECISION_KEY
    source = make_source(
        approver=None,
        source_type=request.source_type,
        source_identity=request.source_identity,
        known_to_engine=request.by_engine,
    )
    return f"{DECISION_KEY}\n{source}"


def _find_end(
    waitpoint: Waitpoint, execution: Execution, progress: ApprovalProgress | None, now: datetime, *, by_token: bool
) -> WaitEnd | None:
    is_closed, closed_at = waitpoint.state is WaitpointState.CLOSED, waitpoint.closed_at or now
    if is_closed and waitpoint.close_reason == "resumed" and progress is not None and progress.result is not None:
        return WaitEnd.DECIDED
    ends = _ends(waitpoint) if by_token or waitpoint.state is not WaitpointState.ACTIVE else _ends(waitpoint)[1:]
    if any(end is not None and end <= closed_at for end in ends):
        return WaitEnd.EXPIRED
    if execution.state in TERMINAL:
        return WaitEnd.ENDED
    return WaitEnd.CLOSED if is_closed else None


def _ends(waitpoint: Waitpoint) -> tuple[datetime | None, ...]:
    return waitpoint.expires_at, waitpoint.token.ends_at if waitpoint.token else None


def _read_comment(payload: bytes) -> str:
    try:
        document = json.loads(payload or b"null")
    except ValueError:
        return ""
    return str(document.get("comment") or document.get("reason") or "") if isinstance(document, dict) else ""
