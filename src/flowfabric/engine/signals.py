"""`engine.signals`: signals from senders with a signed token, or from callers that have access to the store."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest, Unavailable
from flowfabric.core.executions.outcomes import Accepted, DuplicateSignal
from flowfabric.core.executions.records import Fence
from flowfabric.core.executions.requests import parse_fence
from flowfabric.core.ids import parse_id, parse_new_id
from flowfabric.core.tokens.secret import Secret
from flowfabric.core.tokens.token import read_token, signing_secret
from flowfabric.core.waits.decisions import Decide, Decided, DecisionWord
from flowfabric.core.waits.evaluate import APPROVE, REJECT
from flowfabric.core.waits.records import StoredSignal
from flowfabric.core.waits.signals import SignalRequest, approval_key
from flowfabric.engine.context import Context
from flowfabric.engine.operator import OPERATOR
from flowfabric.engine.repeats import with_ids
from flowfabric.engine.waitpoints import parse_waitpoint
from flowfabric.ops.keys import WithKeys
from flowfabric.ops.waits.decide import decide
from flowfabric.ops.waits.deliver_signal import Delivery
from flowfabric.ops.waits.read import SignalQuery, list_signals
from flowfabric.ops.waits.skip_signal import SkipSignal, skip_signal


class Signals:
    """Delivers signals to waitpoints, and lists the signals of a wait."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def deliver(
        self,
        token: str | Secret,
        name: str,
        payload: bytes = b"",
        *,
        encoding: str = "json",
        category: str = "external",
        source_type: str = "external",
        source_identity: str = "unknown",
        correlation: str | None = None,
        signal_id: UUID | str | None = None,
        key: str | None = None,
        created_at: datetime | None = None,
        resume_delay: validation.Duration | None = None,
    ) -> Accepted | DuplicateSignal:
        """Deliver a signal to the waitpoint that the token belongs to.

        If the connection breaks before the reply, the engine repeats the call under the same signal id. The outcome is
        then `DuplicateSignal` if the first try was accepted. If the store stays unavailable, the fields of the error
        contain the `signal_id`; pass that id when you repeat the call. `source_type` and `source_identity` are not
        verified, unless the token was created for an approver.
        """
        parsed = read_token(token)
        del token
        request = self._request(
            name,
            payload,
            encoding=encoding,
            category=category,
            source_type=source_type,
            source_identity=source_identity,
            correlation=correlation,
            signal_id=signal_id,
            key=_check_key(key),
            created_at=created_at,
            resume_delay=resume_delay,
        )
        claims, ring = parsed.unverified, self._context.keys.memory.ring
        delivery = Delivery(
            execution_id=claims.execution_id,
            waitpoint_id=claims.waitpoint_id,
            request=request,
            token=parsed,
            secret=signing_secret(parsed, ring, self._context.namespace),
        )
        return await self._deliver(delivery)

    async def approve(
        self,
        execution_id: UUID | str,
        waitpoint: str,
        name: str = "approved",
        payload: bytes = b"",
        *,
        encoding: str = "json",
        suffix: str | None = None,
        principal: str = OPERATOR,
        signal_id: UUID | str | None = None,
        resume_delay: validation.Duration | None = None,
    ) -> Accepted | DuplicateSignal:
        """Deliver a signal as an operator to the open waitpoint with the key `waitpoint`, without a token.

        With a `suffix`, only one signal with this name and suffix is accepted.
        """
        once = None
        if suffix is not None:
            once = approval_key(validation.name(name, "name"), validation.name(suffix, "suffix"))
        request = self._request(
            name,
            payload,
            encoding=encoding,
            category="approval",
            source_type="operator",
            source_identity=validation.name(principal, "principal"),
            signal_id=signal_id,
            key=once,
            resume_delay=resume_delay,
            by_engine=True,
            principal=principal,
        )
        key = validation.name(waitpoint, "waitpoint")
        id_ = parse_id(execution_id, "execution_id")
        return await self._deliver(Delivery(execution_id=id_, key=key, request=request))

    async def decide(
        self,
        waitpoint: UUID | str | Secret,
        decision: DecisionWord,
        comment: str = "",
        *,
        principal: str | None = None,
        for_: str | None = None,
    ) -> Decided:
        """Decide an approval: `approve` or `reject`. Return the first decision of the approver, which counts.

        `waitpoint` is an approver's token, or the id of a waitpoint for callers with access to the store. The holder of
        a token decides for its approver. With an id, `principal` decides for themselves, or for the approver in `for_`;
        the history records the principal. An approval without approvers takes one decision from each principal. If the
        approval has expired, is decided, or is no longer awaited, raise `approval_closed` with the reason in `end`.
        """
        id_, token = parse_waitpoint(waitpoint)
        del waitpoint
        if principal is None and token is None:
            principal = OPERATOR
        request = Decide(
            signal_id=self._context.ids.mint(),
            waitpoint_id=id_,
            token=token,
            decision=_parse_decision(decision),
            comment=validation.text(comment, "comment"),
            principal=None if principal is None else validation.name(principal, "principal"),
            approver=None if for_ is None else validation.name(for_, "for_"),
        )
        decided = await self._context.call(decide, WithKeys(request, self._context.keys))
        self._context.due_at(None)
        return decided

    async def send(
        self,
        execution_id: UUID | str,
        name: str,
        payload: bytes = b"",
        *,
        encoding: str = "json",
        source_type: str = "program",
        source_identity: str = "unknown",
        correlation: str | None = None,
        signal_id: UUID | str | None = None,
        key: str | None = None,
        created_at: datetime | None = None,
        resume_delay: validation.Duration | None = None,
        or_wait: bool = False,
    ) -> Accepted | DuplicateSignal:
        """Deliver a signal to the standing waitpoint of this name, which was declared when the execution was submitted.

        This call needs no token. With `or_wait`, a signal that the execution did not declare goes to the oldest open
        wait for this signal. When a task waits for an undeclared signal, its waitpoint is named `signal:NAME`,
        `signal:NAME#2` or `gather[1]/signal:NAME`. With `or_wait` and a `key`, the id of the signal is derived from the
        key. So a repeated signal is recognized even if another wait is open by then.
        """
        request = self._request(
            name,
            payload,
            encoding=encoding,
            category="program",
            source_type=source_type,
            source_identity=source_identity,
            correlation=correlation,
            signal_id=signal_id,
            key=_check_key(key),
            created_at=created_at,
            resume_delay=resume_delay,
            by_engine=True,
        )
        id_ = parse_id(execution_id, "execution_id")
        or_wait = validation.boolean(or_wait, "or_wait")
        delivery = Delivery(execution_id=id_, key=request.name, request=request, only_standing=True, or_wait=or_wait)
        return await self._deliver(delivery)

    async def skip(self, fence: Fence, seq: int, reason: str) -> bool:
        """Exclude a signal from all waits of an execution, because its worker cannot read the payload.

        The event `signal unreadable` keeps the reason. Return False if the signal was excluded before. A replay makes
        the signal available again.
        """
        request = SkipSignal(
            fence=parse_fence(fence),
            seq=validation.integer(seq, "sequence number of a signal", 1, validation.MAX_INTEGER),
            reason=validation.text(reason, "reason"),
        )
        return await self._context.call(skip_signal, request)

    async def list(
        self, execution_id: UUID | str, *, suspension: UUID | str | None = None, include_unmatched: bool = False
    ) -> tuple[StoredSignal, ...]:
        """Return the signals that ended the latest or the given suspension, in the order in which they were accepted.

        With `include_unmatched`, return all signals that the suspension received. Once the suspension has ended, the
        result does not change, even in later attempts.
        """
        query = SignalQuery(
            execution_id=parse_id(execution_id, "execution_id"),
            suspension_id=None if suspension is None else parse_id(suspension, "suspension"),
            include_unmatched=validation.boolean(include_unmatched, "include_unmatched"),
        )
        return await self._context.call(list_signals, query)

    async def _deliver(self, delivery: Delivery) -> Accepted | DuplicateSignal:
        try:
            outcome = await self._context.call(self._context.waits.deliver, delivery)
        except Unavailable as error:
            raise with_ids(error, signal_id=delivery.request.id) from error
        self._context.due_at(None)
        return outcome

    def _request(self, name: object, payload: object, **facts: Any) -> SignalRequest:
        signal_id, created_at = facts.get("signal_id"), facts.get("created_at")
        delay, correlation = facts.get("resume_delay"), facts.get("correlation")
        return SignalRequest(
            id=self._context.ids.mint() if signal_id is None else parse_new_id(signal_id),
            name=validation.name(name, "name"),
            payload=validation.payload(payload, "payload", validation.MAX_SIGNAL_BYTES),
            encoding=validation.name(facts["encoding"], "encoding"),
            category=validation.name(facts["category"], "category"),
            source_type=validation.name(facts["source_type"], "source_type"),
            source_identity=validation.name(facts["source_identity"], "source_identity"),
            correlation=None if correlation is None else validation.name(correlation, "correlation"),
            key=facts.get("key"),
            created_at=None if created_at is None else validation.timestamp(created_at, "created_at"),
            resume_delay=None if delay is None else validation.duration(delay, "resume_delay"),
            by_engine=facts.get("by_engine", False),
            principal=facts.get("principal"),
        )


def _parse_decision(value: object) -> DecisionWord:
    if value == APPROVE:
        return APPROVE
    if value == REJECT:
        return REJECT
    message = f"decision must be approve or reject, not {validation.preview(value)}"
    raise InvalidRequest("invalid_choice", message, field="decision")


def _check_key(value: object) -> str | None:
    return None if value is None else validation.name(value, "key")
