"""deliver_signal: takes a signal for a waitpoint, addressed by a token, or by name from whoever holds the store.

The order of checks is part of the contract: the token, or that there is such a waitpoint; then whether the signal came
before, which is answered whatever has happened since; then time; then the execution; then whether it is open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from uuid import UUID

from flowfabric.core.decisions import Decision
from flowfabric.core.errors import FlowFabricError, NotFound
from flowfabric.core.fences import execution_not_found
from flowfabric.core.frozen import record
from flowfabric.core.keyring import KeyRing, verifying_secret
from flowfabric.core.outcomes import Accepted, DuplicateSignal
from flowfabric.core.records import Execution
from flowfabric.core.resuming import OpenWait
from flowfabric.core.secret import Secret
from flowfabric.core.signalling import SignalRequest, check_not_expired, check_open, decide_signal
from flowfabric.core.tokens import ParsedToken, invalid_token, require_not_ended, verify
from flowfabric.core.waits import Waitpoint, WaitpointKind
from flowfabric.ops.hot import HotOperation
from flowfabric.ops.key_ring import KeySource, completed, read_ring
from flowfabric.ops.storing import written_by
from flowfabric.ops.waiting import bound_waits
from flowfabric.ops.writing import write
from flowfabric.store.transaction import Transaction
from flowfabric.store.unlocked import Seen
from flowfabric.store.waiting import Asked, Heard

Answer = Accepted | DuplicateSignal


@record(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A signal and where it goes: by a token; or by an execution and a waitpoint's id, or the key of an open one.
    `signed` is the secret by which the token is genuine, as far as the ring is remembered."""

    execution_id: UUID
    request: SignalRequest
    token: ParsedToken | None = None
    signed: Secret | None = None
    waitpoint_id: UUID | None = None
    key: str | None = None
    only_standing: bool = False


def delivering(keys: KeySource) -> HotOperation[Delivery, Answer]:
    """The operation, with the keys that tokens are verified with."""
    together, alone = partial(_together, keys=keys), partial(_alone, keys=keys)
    locking = HotOperation(together, alone, subject=_subject, one_statement=False)
    at_once = partial(_at_once, keys=keys)
    return HotOperation(at_once, alone, subject=_subject, others=locking, for_others=_takes_longer)


async def _at_once(
    tx: Transaction, namespace: str, items: Sequence[Delivery], keys: KeySource
) -> list[Answer | FlowFabricError | None]:
    """Delivers those that are accepted, by one look and one write that leaves out rows touched in between.
    Whatever else there is to say is said under a lock."""
    simple, signed = [item for item in items if not _takes_longer(item)], _signed(items)
    seen = await tx.unlocked.before_signalling([_asked(item) for item in simple]) if simple else None
    if seen is None or seen.ring is None:
        return [None] * len(items)
    here = [item for item in simple if _is_here(item, seen, namespace)]
    ring, targets = completed(seen.ring, keys), _open_targets(here, seen.waitpoints)
    waits = bound_waits(seen.suspensions, seen.waitpoints)
    decisions: dict[UUID, Decision[Accepted]] = {}
    for item in here:
        id_ = item.execution_id
        try:
            waitpoint = _checked(item, targets.get(id_), signed.get(id_), ring, seen.now)
            decision = _decide(item, seen.executions[id_], waitpoint, waits.get(id_), seen.heard, seen.now)
        except FlowFabricError:
            continue
        if decision.waits is not None and not decision.waits.unbound:
            decisions[id_] = decision
    held = await tx.unlocked.write(written_by(list(decisions.values())), seen) if decisions else ()
    return [decisions[id_].answer if id_ in held else None for id_ in map(_subject, items)]


def _is_here(item: Delivery, seen: Seen, namespace: str) -> bool:
    """True if the execution is in this namespace and it is clear that the signal has not come before."""
    execution = seen.executions.get(item.execution_id)
    is_repeated = item.execution_id in seen.heard.accepted or (
        item.waitpoint_id is None and item.request.key is not None
    )
    return execution is not None and execution.namespace == namespace and not is_repeated


def _takes_longer(item: Delivery) -> bool:
    """Whether it came before under its key is known only when the waitpoint that it names is. And what may be forged
    must not take the turn of a genuine signal to the same execution."""
    is_doubtful = item.token is not None and item.signed is None
    return is_doubtful or (item.waitpoint_id is None and item.request.key is not None)


def _subject(item: Delivery) -> UUID:
    return item.execution_id


async def _together(
    tx: Transaction, namespace: str, items: Sequence[Delivery], keys: KeySource
) -> list[Answer | FlowFabricError | None]:
    """Delivers to all executions whose row is free; refusals are answers."""
    signed = _signed(items)
    verified, answers = await _verify(tx, namespace, [item for item in items if item.execution_id not in signed], keys)
    genuine = [item for item in items if item.execution_id not in answers]
    found = await tx.executions.lock_free([item.execution_id for item in genuine]) if genuine else {}
    here = [item for item in genuine if item.execution_id in found and found[item.execution_id].namespace == namespace]
    answers |= await _deliver(tx, here, found, signed | verified, keys)
    return [answers.get(item.execution_id) for item in items]


async def _alone(tx: Transaction, namespace: str, item: Delivery, keys: KeySource) -> Answer:
    """Delivers one signal to an execution whose row is waited for, or says why not."""
    verified, answers = await _verify(tx, namespace, [item], keys)
    if not answers:
        found = await tx.executions.lock(namespace, [item.execution_id])
        if not found:
            raise execution_not_found(item.execution_id)
        answers |= await _deliver(tx, [item], found, verified, keys)
    answer = answers[item.execution_id]
    if isinstance(answer, FlowFabricError):
        raise answer
    return answer


def _signed(items: Sequence[Delivery]) -> dict[UUID, Secret]:
    """By which secrets tokens are genuine, as far as the ring is remembered: whether those are still good is looked at
    with everything else that is read for them."""
    return {item.execution_id: item.signed for item in items if item.signed is not None}


async def _verify(
    tx: Transaction, namespace: str, items: Sequence[Delivery], keys: KeySource
) -> tuple[dict[UUID, Secret], dict[UUID, Answer | FlowFabricError]]:
    """By which secrets tokens are genuine now, and the refusals of those that are not, before anything is locked for
    them. Whoever waits for a lock then looks again whether the secrets are still good."""
    verified: dict[UUID, Secret] = {}
    refused: dict[UUID, Answer | FlowFabricError] = {}
    with_token = [(item.execution_id, item.token) for item in items if item.token is not None]
    if not with_token:
        return verified, refused
    ring, now = await read_ring(tx, keys), await tx.now()
    for id_, token in with_token:
        try:
            verify(token, ring, namespace, now)
        except FlowFabricError as error:
            refused[id_] = error
        else:
            secret = verifying_secret(ring, token.kid, now)
            assert secret is not None, "it has verified the token"
            verified[id_] = secret
    return verified, refused


async def _deliver(
    tx: Transaction, items: Sequence[Delivery], found: dict[UUID, Execution], signed: Mapping[UUID, Secret],
    keys: KeySource,
) -> dict[UUID, Answer | FlowFabricError]:  # fmt: skip
    if not items:
        return {}
    now = await tx.now()
    ids = [item.execution_id for item in items]
    around, suspensions, heard, ring = await tx.waits.before_signalling(ids, [_asked(item) for item in items])
    ring = completed(ring, keys)
    targets = await _targets(tx, items, around, now)
    # Whoever is known by its id is not asked for its key.
    earlier = {**await _accepted_by_key(tx, items, targets), **heard.accepted}
    waits = bound_waits(suspensions, around)
    answers: dict[UUID, Answer | FlowFabricError] = {}
    decisions: list[Decision[Accepted]] = []
    for item in items:
        id_ = item.execution_id
        try:
            waitpoint = _checked(item, targets.get(id_), signed.get(id_), ring, now)
            if id_ in earlier:
                answers[id_] = DuplicateSignal(earlier[id_])
                continue
            decision = _decide(item, found[id_], waitpoint, waits.get(id_), heard, now)
            decisions.append(decision)
            answers[id_] = decision.answer
        except FlowFabricError as error:
            answers[id_] = error
    await write(tx, decisions)
    return answers


def _checked(
    item: Delivery, target: Waitpoint | None, signed: Secret | None, ring: KeyRing, now: datetime
) -> Waitpoint:
    """The waitpoint that a signal goes to, if its address leads there."""
    _check_key(item, signed, ring, now)
    _check_token(item, target)
    return _addressed(item, target)


def _decide(
    item: Delivery, execution: Execution, waitpoint: Waitpoint, wait: OpenWait | None, heard: Heard, now: datetime
) -> Decision[Accepted]:
    _check_signalable(execution, item, waitpoint, now)
    return decide_signal(execution, waitpoint, wait, heard.counting.get(execution.id, ()), item.request, now)


def _open_targets(items: Sequence[Delivery], around: Mapping[UUID, Sequence[Waitpoint]]) -> dict[UUID, Waitpoint]:
    """The open waitpoint of each execution that a signal goes to."""
    targets: dict[UUID, Waitpoint] = {}
    for item in items:
        for waitpoint in around.get(item.execution_id, ()):
            if item.waitpoint_id in (waitpoint.id, None) and item.key in (waitpoint.key, None):
                targets[item.execution_id] = waitpoint
    return targets


async def _targets(
    tx: Transaction, items: Sequence[Delivery], around: Mapping[UUID, Sequence[Waitpoint]], now: datetime
) -> dict[UUID, Waitpoint]:
    """The same, or one that may still answer a repeat."""
    targets = _open_targets(items, around)
    missed = [item for item in items if item.execution_id not in targets]
    ids = [item.waitpoint_id for item in missed if item.waitpoint_id is not None]
    by_id = await tx.waits.waitpoints(ids) if ids else {}
    for item in missed:
        closed = by_id.get(item.waitpoint_id) if item.waitpoint_id else None
        if item.key is not None:
            closed = await tx.waits.last_waitpoint(item.execution_id, item.key, now)
        if closed is not None and closed.execution_id == item.execution_id:
            targets[item.execution_id] = closed
    return targets


def _asked(item: Delivery, target: Waitpoint | None = None) -> Asked:
    """What tells whether a signal came before."""
    waitpoint_id = item.waitpoint_id if target is None else target.id
    return Asked(item.execution_id, item.request.id, waitpoint_id, item.request.key)


async def _accepted_by_key(
    tx: Transaction, items: Sequence[Delivery], targets: Mapping[UUID, Waitpoint]
) -> Mapping[UUID, UUID]:
    """The signals that came before under their key to a waitpoint that is known only now, because it was named."""
    named = [item for item in items if item.waitpoint_id is None and item.request.key is not None]
    asked = [_asked(item, targets[item.execution_id]) for item in named if item.execution_id in targets]
    return (await tx.waits.heard([], asked)).accepted if asked else {}


def _check_key(item: Delivery, signed: Secret | None, ring: KeyRing, now: datetime) -> None:
    """Refuses a token whose key is not the one that it was verified with, or not good any more."""
    if item.token is not None and (signed is None or verifying_secret(ring, item.token.kid, now) != signed):
        raise invalid_token()


def _check_token(item: Delivery, waitpoint: Waitpoint | None) -> None:
    """Refuses a token that is not the one of its waitpoint."""
    token = item.token
    known = None if waitpoint is None else waitpoint.token
    if token is not None and (known is None or known.nonce != token.unverified.nonce):
        raise invalid_token()


def _addressed(item: Delivery, waitpoint: Waitpoint | None) -> Waitpoint:
    """The waitpoint that an address leads to."""
    by_name = item.token is None
    if waitpoint is None or (by_name and waitpoint.kind not in _ADDRESSABLE[item.only_standing]):
        what = f"waitpoint {item.key!r}" if item.key is not None else f"waitpoint {item.waitpoint_id}"
        message = f"execution {item.execution_id} has no open {what}"
        raise NotFound("waitpoint_not_found", message, execution_id=item.execution_id, waitpoint=item.key)
    return waitpoint


_ADDRESSABLE = {
    True: (WaitpointKind.STANDING,),
    False: (WaitpointKind.STANDING, WaitpointKind.ADDRESSED),
}


def _check_signalable(execution: Execution, item: Delivery, waitpoint: Waitpoint, now: datetime) -> None:
    if item.token is not None:
        require_not_ended(item.token.unverified, now)
        check_not_expired(waitpoint, now)
    check_open(execution, waitpoint, now)
