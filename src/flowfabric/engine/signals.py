"""`engine.signals`: what comes from outside, by a signed token or from whoever holds the store."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from flowfabric.core import limits
from flowfabric.core.ids import parse_id, parse_new_id
from flowfabric.core.outcomes import Accepted, DuplicateSignal
from flowfabric.core.secret import Secret
from flowfabric.core.signalling import SignalRequest
from flowfabric.core.tokens import read_token, signing_secret
from flowfabric.core.waits import Signal
from flowfabric.engine.context import Context
from flowfabric.engine.operator import OPERATOR
from flowfabric.ops.deliver_signal import Delivery
from flowfabric.ops.observing import observe_signals


class Signals:
    """Delivers signals to waitpoints, and reads which ones a wait was ended by."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def deliver(
        self, token: str | Secret, name: str, payload: bytes = b"", *, encoding: str = "json",
        category: str = "external", source_type: str = "external", source_identity: str = "unknown",
        correlation: str | None = None, signal_id: UUID | str | None = None, key: str | None = None,
        created_at: datetime | None = None, resume_delay: limits.Duration | None = None,
    ) -> Accepted | DuplicateSignal:  # fmt: skip
        """Delivers a signal to the waitpoint that the token is for. Give a `signal_id` or a `key` to make repeating it
        after a lost reply harmless. The source counts as claimed, unless the token was minted for an approver."""
        parsed = read_token(token)
        del token
        request = self._request(
            name, payload, encoding=encoding, category=category, source_type=source_type,
            source_identity=source_identity, correlation=correlation, signal_id=signal_id, key=_key(key),
            created_at=created_at, resume_delay=resume_delay,
        )  # fmt: skip
        claims, ring = parsed.unverified, self._context.keys.memory.ring
        delivery = Delivery(
            execution_id=claims.execution_id, waitpoint_id=claims.waitpoint_id, request=request, token=parsed,
            signed=signing_secret(parsed, ring, self._context.namespace),
        )  # fmt: skip
        return await self._deliver(delivery)

    async def approve(
        self, execution_id: UUID | str, waitpoint: str, name: str = "approved", payload: bytes = b"", *,
        encoding: str = "json", suffix: str | None = None, principal: str = OPERATOR,
        resume_delay: limits.Duration | None = None,
    ) -> Accepted | DuplicateSignal:  # fmt: skip
        """The operator's approval, without a token, of the open waitpoint with this key. With a `suffix` it is accepted
        once per name and suffix."""
        by = limits.name(principal, "principal")
        # A sender's key is printable, so nobody with a token can take the place of an approval that is to come.
        once = None if suffix is None else f"approval\n{limits.name(name, 'name')}\n{limits.name(suffix, 'suffix')}"
        request = self._request(
            name, payload, encoding=encoding, category="approval", source_type="operator", source_identity=by,
            key=once, resume_delay=resume_delay, by_engine=True,
        )  # fmt: skip
        key = limits.name(waitpoint, "waitpoint")
        found = parse_id(execution_id, "execution_id")
        return await self._deliver(Delivery(execution_id=found, key=key, request=request))

    async def send(
        self, execution_id: UUID | str, name: str, payload: bytes = b"", *, encoding: str = "json",
        source_type: str = "program", source_identity: str = "unknown", correlation: str | None = None,
        signal_id: UUID | str | None = None, key: str | None = None, created_at: datetime | None = None,
        resume_delay: limits.Duration | None = None,
    ) -> Accepted | DuplicateSignal:  # fmt: skip
        """Delivers a signal to the standing waitpoint of that name, which was declared when the execution was
        submitted; for whoever holds the store."""
        request = self._request(
            name, payload, encoding=encoding, category="program", source_type=source_type,
            source_identity=source_identity, correlation=correlation, signal_id=signal_id, key=_key(key),
            created_at=created_at, resume_delay=resume_delay, by_engine=True,
        )  # fmt: skip
        found = parse_id(execution_id, "execution_id")
        return await self._deliver(Delivery(execution_id=found, key=request.name, request=request, only_standing=True))

    async def observe(
        self, execution_id: UUID | str, *, suspension: UUID | str | None = None, include_unmatched: bool = False
    ) -> tuple[Signal, ...]:
        """The signals that ended the latest suspension, or this one, in order of acceptance; all that came, if asked.
        A read: valid before the resumed claim and in every later attempt."""
        found = parse_id(execution_id, "execution_id")
        which = None if suspension is None else parse_id(suspension, "suspension")
        unmatched = limits.truth(include_unmatched, "include_unmatched")
        namespace = self._context.namespace
        return await self._context.store.read(lambda tx: observe_signals(tx, namespace, found, which, unmatched))

    async def _deliver(self, delivery: Delivery) -> Accepted | DuplicateSignal:
        answer = await self._context.one(self._context.waits.deliver, delivery)
        self._context.due_at(None)
        return answer

    def _request(self, name: object, payload: object, **facts: Any) -> SignalRequest:
        signal_id, created_at = facts.get("signal_id"), facts.get("created_at")
        delay, correlation = facts.get("resume_delay"), facts.get("correlation")
        return SignalRequest(
            id=self._context.ids.mint() if signal_id is None else parse_new_id(signal_id),
            name=limits.name(name, "name"), payload=limits.payload(payload, "payload", limits.SIGNAL_BYTES),
            encoding=limits.name(facts["encoding"], "encoding"), category=limits.name(facts["category"], "category"),
            source_type=limits.name(facts["source_type"], "source_type"),
            source_identity=limits.name(facts["source_identity"], "source_identity"),
            correlation=None if correlation is None else limits.name(correlation, "correlation"),
            key=facts.get("key"),
            created_at=None if created_at is None else limits.moment(created_at, "created_at"),
            resume_delay=None if delay is None else limits.duration(delay, "resume_delay"),
            by_engine=facts.get("by_engine", False),
        )  # fmt: skip


def _key(value: object) -> str | None:
    return None if value is None else limits.name(value, "key")
