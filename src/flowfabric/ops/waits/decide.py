"""decide: record the decision of an approver, or return the first one. describe_wait: show its prompt and state.

Both find the waitpoint by its id or by a token. A token is verified before anything else, so that a forged token learns
nothing about the waitpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from flowfabric.core.errors import NotFound, Refused
from flowfabric.core.executions.outcomes import Accepted, DuplicateSignal
from flowfabric.core.executions.records import Execution
from flowfabric.core.tokens.token import ParsedToken, verify_token
from flowfabric.core.waits.decisions import (
    Decide,
    Decided,
    WaitpointDescription,
    approval_closed,
    approval_name,
    describe_waitpoint,
    has_token_ended,
    make_decision_signal,
    read_decision,
)
from flowfabric.core.waits.evaluate import APPROVE, REJECT
from flowfabric.core.waits.records import StoredSignal, Waitpoint
from flowfabric.ops.keys import KeySource, WithKeys, read_ring
from flowfabric.ops.operation import operation
from flowfabric.ops.waits.deliver_signal import Delivered, DeliverLocked, Delivery, check_token
from flowfabric.store.transaction import Transaction

_MAX_DECISIONS = 100
_MAX_SIGNALS = 1_000


@dataclass(frozen=True, slots=True)
class WaitpointQuery:
    """A query for one waitpoint, by its id. With a token, the caller is the holder of that token."""

    waitpoint_id: UUID
    token: ParsedToken | None


@operation()
async def decide(tx: Transaction, namespace: str, request: WithKeys[Decide]) -> Decided:
    """Record the decision of an approver. If the approver has decided before, return the first decision."""
    wanted = request.request
    query = WaitpointQuery(wanted.waitpoint_id, wanted.token)
    waitpoint, _ = await _find(tx, namespace, query, request.keys)
    delivered = await _deliver(tx, namespace, request, waitpoint)
    if delivered is None:
        # The wait may have ended while this call waited for the lock, so read it again.
        waitpoint, execution = await _find(tx, namespace, query, request.keys)
        raise approval_closed(await _describe(tx, waitpoint, execution, by_token=wanted.token is not None))
    [signal] = await _read_decisions(tx, waitpoint, id_=delivered.signal_id)
    approval, decision = approval_name(waitpoint.key, waitpoint.approver), read_decision(signal, waitpoint.approver)
    is_repeated = isinstance(delivered, DuplicateSignal) and delivered.signal_id != wanted.signal_id
    return Decided(waitpoint.execution_id, waitpoint.id, approval, decision, delivered, is_repeated)


@operation(read_only=True)
async def describe_wait(tx: Transaction, namespace: str, request: WithKeys[WaitpointQuery]) -> WaitpointDescription:
    """Return a waitpoint with its prompt, its decisions, and the reason if it accepts no further signals."""
    waitpoint, execution = await _find(tx, namespace, request.request, request.keys)
    return await _describe(tx, waitpoint, execution, by_token=request.request.token is not None)


async def _find(tx: Transaction, namespace: str, query: WaitpointQuery, keys: KeySource) -> tuple[Waitpoint, Execution]:
    """Return the waitpoint and its execution. Raise if the token is not genuine or the waitpoint is not here."""
    if query.token is not None:
        verify_token(query.token, await read_ring(tx, keys), namespace, await tx.now())
    waitpoint = (await tx.waits.waitpoints([query.waitpoint_id])).get(query.waitpoint_id)
    check_token(query.token, waitpoint)
    executions = {} if waitpoint is None else await tx.executions.get(namespace, [waitpoint.execution_id])
    if waitpoint is None or waitpoint.execution_id not in executions:
        message = f"there is no waitpoint {query.waitpoint_id}; list the waitpoints of the execution"
        raise NotFound("waitpoint_not_found", message, waitpoint_id=query.waitpoint_id)
    return waitpoint, executions[waitpoint.execution_id]


async def _deliver(
    tx: Transaction, namespace: str, request: WithKeys[Decide], waitpoint: Waitpoint
) -> Delivered | None:
    """Deliver the decision as a signal. Return None if the approval accepts no further decisions."""
    wanted, id_ = request.request, waitpoint.execution_id
    signal = make_decision_signal(wanted, waitpoint)
    delivery = Delivery(execution_id=id_, waitpoint_id=waitpoint.id, request=signal, token=wanted.token)
    try:
        delivered = await DeliverLocked(request.keys).run_one(tx, namespace, delivery)
    except Refused as error:
        if error.code not in _CLOSED:
            raise
        return None
    # The task ignores a new decision after the end of the token, even that of an operator. The error undoes it.
    is_late = isinstance(delivered, Accepted) and has_token_ended(waitpoint, await tx.now())
    return None if is_late else delivered


_CLOSED = frozenset({"target_not_signalable", "token_expired", "waitpoint_closed"})


async def _describe(
    tx: Transaction, waitpoint: Waitpoint, execution: Execution, *, by_token: bool
) -> WaitpointDescription:
    number, suspension = waitpoint.suspension, None
    approvers: dict[str, str] = {}
    signals: list[StoredSignal] = []
    if number is not None:
        suspension = await tx.waits.last_suspension(execution.id, number=number)
        bound = await tx.waits.bound_waitpoints(execution.id, number)
        approvers = {each.key: each.approver for each in bound if each.approver is not None}
        pages = await tx.waits.signals([(execution.id, number, 0)], include_unmatched=False, limit=_MAX_SIGNALS)
        signals = pages.get(execution.id, [])
    decisions = await _read_decisions(tx, waitpoint)
    now = await tx.now()
    return describe_waitpoint(
        waitpoint, execution, suspension, approvers, signals, decisions=decisions, now=now, by_token=by_token
    )


async def _read_decisions(tx: Transaction, waitpoint: Waitpoint, *, id_: UUID | None = None) -> list[StoredSignal]:
    return await tx.waits.keyed_signals(waitpoint.id, (APPROVE, REJECT), _MAX_DECISIONS, id_=id_)
