"""deliver_signal: accept a signal for a waitpoint. A token or a name addresses the waitpoint.

A name addresses a declared signal or, with `Delivery.or_wait`, the oldest open wait for an undeclared one.

```text
signal ──┬── a doubtful token, or a key at a named waitpoint ──> locked_batch
         ├── most recent optimistic signals failed ──> locked_batch
         └── otherwise ──> optimistic      one read and one guarded write, no transaction around them
                               │ row changed since the read, repeated, or refused
                               └──> locked_batch      rows that are free
                                        │ row busy
                                        └──> locked_batch      up to twice more
                                                 │ row still busy
                                                 └──> locked_single
```

Under load, workers claim and suspend the executions that get signals, so most optimistic writes would fail.

The order of the checks is part of the contract. First, the token is verified and the waitpoint must exist. Then a
repeated signal returns a duplicate, even if the wait is over. Then the token and the waitpoint must not have expired,
and the execution and the waitpoint must be able to take the signal. Last, the payload must fit the waitpoint's schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from flowfabric.core.errors import FlowFabricError, NotFound
from flowfabric.core.executions.decision import Decision
from flowfabric.core.executions.outcomes import Accepted, DuplicateSignal
from flowfabric.core.executions.records import Execution
from flowfabric.core.executions.requests import execution_not_found
from flowfabric.core.fast_dataclass import record, replace
from flowfabric.core.ids import derive_id
from flowfabric.core.tokens.key_ring import KeyRing, verifying_secret
from flowfabric.core.tokens.secret import Secret
from flowfabric.core.tokens.token import ParsedToken, invalid_token, require_not_ended, verify_token
from flowfabric.core.waits.decisions import as_decision
from flowfabric.core.waits.records import Waitpoint, WaitpointKind, WaitpointState
from flowfabric.core.waits.resume import OpenWait
from flowfabric.core.waits.schemas import check_payload
from flowfabric.core.waits.signals import (
    SignalRequest,
    as_approval,
    check_not_expired,
    check_open,
    decide_signal,
    find_open_wait,
    is_wait_for,
)
from flowfabric.ops.apply import write
from flowfabric.ops.keys import KeySource, complete_ring, read_ring
from flowfabric.ops.operation import BatchOperation
from flowfabric.ops.waits.load import join_open_waits
from flowfabric.ops.write_set import make_write_set
from flowfabric.store.records import OptimisticSnapshot, ReceivedSignals, SignalLookup
from flowfabric.store.transaction import Transaction

Delivered = Accepted | DuplicateSignal
_MAX_FAILED_SHARE = 0.5
_SHARE_WEIGHT = 0.2
_PROBE_EVERY = 16
_ADDRESSABLE = {
    True: (WaitpointKind.STANDING,),
    False: (WaitpointKind.STANDING, WaitpointKind.ADDRESSED),
}


@record(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A signal and its address: a token, or an execution with the id or the key of a waitpoint.

    `secret` is the key that verified the token, taken from the key ring that this process remembers. With `or_wait`, a
    signal that the execution does not declare goes to the oldest open wait for that signal.
    """

    execution_id: UUID
    request: SignalRequest
    token: ParsedToken | None = None
    secret: Secret | None = None
    waitpoint_id: UUID | None = None
    key: str | None = None
    only_standing: bool = False
    or_wait: bool = False


class DeliverLocked(BatchOperation[Delivery, Delivered]):
    """Deliver signals to locked executions; `keys` verify the tokens."""

    name = "deliver_signal"
    single_statement = False
    batch_path = "locked_batch"

    def __init__(self, keys: KeySource, fallback: BatchOperation[Delivery, Delivered] | None = None) -> None:
        super().__init__(fallback)
        self.keys = keys

    def key(self, request: Delivery) -> UUID:
        return request.execution_id

    async def run_batch(
        self, tx: Transaction, namespace: str, requests: Sequence[Delivery]
    ) -> list[Delivered | FlowFabricError | None]:
        """Deliver to all executions whose row is not locked. Return refusals instead of raising them."""
        remembered = _remembered_secrets(requests)
        doubtful = [delivery for delivery in requests if delivery.execution_id not in remembered]
        verified, outcomes = await _verify(tx, namespace, doubtful, self.keys)
        genuine = [delivery for delivery in requests if delivery.execution_id not in outcomes]
        executions = await tx.executions.lock_free([item.execution_id for item in genuine]) if genuine else {}
        local = [item for item in genuine if _is_in(executions.get(item.execution_id), namespace)]
        outcomes |= await _deliver(tx, local, executions, remembered | verified, self.keys)
        return [outcomes.get(delivery.execution_id) for delivery in requests]

    async def run_one(self, tx: Transaction, namespace: str, request: Delivery) -> Delivered:
        """Wait for the lock on the row, and deliver the signal. Raise if the signal is refused."""
        verified, outcomes = await _verify(tx, namespace, [request], self.keys)
        if not outcomes:
            executions = await tx.executions.lock(namespace, [request.execution_id])
            if not executions:
                raise execution_not_found(request.execution_id)
            outcomes |= await _deliver(tx, [request], executions, verified, self.keys)
        outcome = outcomes[request.execution_id]
        if isinstance(outcome, FlowFabricError):
            raise outcome
        return outcome


class DeliverSignal(DeliverLocked):
    """Deliver signals without locks: read once, decide, and write unless a row has changed since the read.

    If most of the recent batches failed, only one of `_PROBE_EVERY` signals is tried here first.
    """

    single_statement = True
    batch_path = "optimistic"

    def __init__(self, keys: KeySource, fallback: BatchOperation[Delivery, Delivered]) -> None:
        super().__init__(keys, fallback)
        self._failed_share = 0.0
        self._skipped = 0

    async def run_batch(
        self, tx: Transaction, namespace: str, requests: Sequence[Delivery]
    ) -> list[Delivered | FlowFabricError | None]:
        """Deliver the signals that can be accepted. Return None for the others, which the fallback decides."""
        outcomes = await self._try(tx, namespace, requests)
        failed = outcomes.count(None) / len(outcomes)
        self._failed_share += _SHARE_WEIGHT * (failed - self._failed_share)
        return outcomes

    async def _try(
        self, tx: Transaction, namespace: str, requests: Sequence[Delivery]
    ) -> list[Delivered | FlowFabricError | None]:
        simple, secrets = [item for item in requests if not _needs_lock(item)], _remembered_secrets(requests)
        snapshot = await tx.optimistic.read_for_signals([_lookup(item) for item in simple]) if simple else None
        if snapshot is None or snapshot.key_ring is None:
            return [None] * len(requests)
        new = [delivery for delivery in simple if _is_new(delivery, snapshot, namespace)]
        key_ring, targets = complete_ring(snapshot.key_ring, self.keys), _open_targets(new, snapshot.waitpoints)
        waits = join_open_waits(snapshot.suspensions, snapshot.waitpoints)
        decisions: dict[UUID, Decision[Accepted]] = {}
        for delivery in new:
            id_ = delivery.execution_id
            if _is_early_wait(delivery, targets.get(id_)) or _is_unlabelled_decision(delivery, targets.get(id_)):
                continue  # The fallback reads whether the wait has received this signal or decision.
            try:
                waitpoint = _check_address(delivery, targets.get(id_), secrets.get(id_), key_ring, snapshot.now)
                decision = _decide(
                    delivery, snapshot.executions[id_], waitpoint, waits.get(id_), snapshot.received, snapshot.now
                )
            except FlowFabricError:
                continue
            if decision.waits is not None and not decision.waits.unbound:
                decisions[id_] = decision
        write_set = make_write_set(list(decisions.values()))
        written = await tx.optimistic.write(write_set, snapshot) if decisions else ()
        return [decisions[id_].outcome if id_ in written else None for id_ in map(self.key, requests)]

    def use_fallback(self, request: Delivery) -> bool:
        if _needs_lock(request):
            return True
        if self._failed_share <= _MAX_FAILED_SHARE:
            return False
        self._skipped = (self._skipped + 1) % _PROBE_EVERY
        return self._skipped != 0


def make_deliver_signal(keys: KeySource) -> DeliverSignal:
    """Return the operation that delivers the signals of one engine."""
    locked = DeliverLocked(keys, fallback=DeliverLocked(keys, fallback=DeliverLocked(keys)))
    return DeliverSignal(keys, fallback=locked)


def _needs_lock(request: Delivery) -> bool:
    """Return True if the signal needs more than one read, or may be forged.

    A key at a named waitpoint can be looked up only after the waitpoint is known. A token that may be forged must not
    delay a genuine signal to the same execution.
    """
    is_doubtful = request.token is not None and request.secret is None
    return is_doubtful or (request.waitpoint_id is None and request.request.key is not None)


def _is_new(delivery: Delivery, snapshot: OptimisticSnapshot, namespace: str) -> bool:
    """Return True if the execution is in this namespace and the signal was certainly not delivered before."""
    is_repeated = delivery.execution_id in snapshot.received.accepted or (
        delivery.waitpoint_id is None and delivery.request.key is not None
    )
    return _is_in(snapshot.executions.get(delivery.execution_id), namespace) and not is_repeated


def _is_in(execution: Execution | None, namespace: str) -> bool:
    return execution is not None and execution.namespace == namespace


def _remembered_secrets(deliveries: Sequence[Delivery]) -> dict[UUID, Secret]:
    """Return, by execution id, the secrets that verified tokens against the remembered key ring.

    `_check_key` later checks each secret against the key ring that is read from the store with the waitpoints.
    """
    return {delivery.execution_id: delivery.secret for delivery in deliveries if delivery.secret is not None}


async def _verify(
    tx: Transaction, namespace: str, deliveries: Sequence[Delivery], keys: KeySource
) -> tuple[dict[UUID, Secret], dict[UUID, Delivered | FlowFabricError]]:
    """Verify tokens before anything is locked. Return the secrets that verified them, and refusals of invalid tokens.

    `_check_key` checks the secrets again after the locks, because a key may end while a transaction waits.
    """
    verified: dict[UUID, Secret] = {}
    refused: dict[UUID, Delivered | FlowFabricError] = {}
    tokens = [(delivery.execution_id, delivery.token) for delivery in deliveries if delivery.token is not None]
    if not tokens:
        return verified, refused
    ring, now = await read_ring(tx, keys), await tx.now()
    for id_, token in tokens:
        try:
            verify_token(token, ring, namespace, now)
        except FlowFabricError as error:
            refused[id_] = error
        else:
            secret = verifying_secret(ring, token.kid, now)
            assert secret is not None, "it has verified the token"
            verified[id_] = secret
    return verified, refused


async def _deliver(
    tx: Transaction,
    deliveries: Sequence[Delivery],
    executions: dict[UUID, Execution],
    secrets: Mapping[UUID, Secret],
    keys: KeySource,
) -> dict[UUID, Delivered | FlowFabricError]:
    if not deliveries:
        return {}
    now = await tx.now()
    deliveries = [_with_id_of_key(delivery, executions[delivery.execution_id]) for delivery in deliveries]
    ids = [delivery.execution_id for delivery in deliveries]
    waitpoints, suspensions, received, ring = await tx.waits.read_for_signals(ids, list(map(_lookup, deliveries)))
    ring = complete_ring(ring, keys)
    waitpoints = await _without_ended_waits(tx, deliveries, waitpoints)
    targets = await _find_targets(tx, deliveries, waitpoints, now)
    # If a signal was found both by its key and by its id, the one found by the id counts.
    earlier = {**await _accepted_by_key(tx, deliveries, targets), **received.accepted}
    waits = join_open_waits(suspensions, waitpoints)
    outcomes: dict[UUID, Delivered | FlowFabricError] = {}
    decisions: list[Decision[Accepted]] = []
    for delivery in deliveries:
        id_ = delivery.execution_id
        if delivery.or_wait and id_ in received.accepted:
            # The wait that accepted the signal may be over, so the repeated signal may match no waitpoint.
            outcomes[id_] = DuplicateSignal(received.accepted[id_])
            continue
        try:
            waitpoint = _check_address(delivery, targets.get(id_), secrets.get(id_), ring, now)
            if id_ in earlier:
                outcomes[id_] = DuplicateSignal(earlier[id_])
                continue
            decision = _decide(delivery, executions[id_], waitpoint, waits.get(id_), received, now)
            decisions.append(decision)
            outcomes[id_] = decision.outcome
        except FlowFabricError as error:
            outcomes[id_] = error
    await write(tx, decisions)
    return outcomes


def _check_address(
    delivery: Delivery, target: Waitpoint | None, secret: Secret | None, ring: KeyRing, now: datetime
) -> Waitpoint:
    """Return the waitpoint that a signal is addressed to. Refuse an invalid token or an unknown waitpoint."""
    _check_key(delivery, secret, ring, now)
    check_token(delivery.token, target)
    return _check_target(delivery, target)


def _decide(
    delivery: Delivery,
    execution: Execution,
    waitpoint: Waitpoint,
    wait: OpenWait | None,
    received: ReceivedSignals,
    now: datetime,
) -> Decision[Accepted]:
    _check_signalable(execution, delivery, waitpoint, now)
    if waitpoint.payload_schema is not None and delivery.request.encoding == "json":
        check_payload(waitpoint.payload_schema, delivery.request.payload, waitpoint.key)
    counting, request = received.counting.get(execution.id, ()), _request_at(waitpoint, delivery)
    return decide_signal(execution, waitpoint, wait, counting, request, now)


def _request_at(waitpoint: Waitpoint, delivery: Delivery) -> SignalRequest:
    """Return the signal in the form to store. At a wait for an undeclared signal, it is stored as an approval."""
    is_undeclared = delivery.or_wait and waitpoint.kind is not WaitpointKind.STANDING
    return as_approval(delivery.request) if is_undeclared else as_decision(delivery.request, waitpoint)


def _with_id_of_key(delivery: Delivery, execution: Execution) -> Delivery:
    """If an `or_wait` signal has a key, derive the id of the signal from this key.

    When the wait is over, a repeated signal no longer finds its waitpoint, and the next wait would accept it. The
    derived id identifies the repeated signal in the whole generation of the execution.
    """
    request = delivery.request
    if not delivery.or_wait or request.key is None:
        return delivery
    id_ = derive_id(execution.id, "signal", str(execution.generation), request.name, request.key)
    return replace(delivery, request=replace(request, id=id_))


def _open_targets(
    deliveries: Sequence[Delivery], waitpoints: Mapping[UUID, Sequence[Waitpoint]]
) -> dict[UUID, Waitpoint]:
    """Return, by execution id, the open waitpoint that each signal is addressed to."""
    targets: dict[UUID, Waitpoint] = {}
    for delivery in deliveries:
        candidates = waitpoints.get(delivery.execution_id, ())
        target = next((waitpoint for waitpoint in candidates if _is_addressed(waitpoint, delivery)), None)
        if target is None and delivery.or_wait:
            target = find_open_wait(candidates, delivery.request.name)
        if target is not None:
            targets[delivery.execution_id] = target
    return targets


def _is_early_wait(delivery: Delivery, target: Waitpoint | None) -> bool:
    """Return True if an undeclared signal is for a wait that a worker opened before it suspends."""
    if not delivery.or_wait or target is None or target.kind is WaitpointKind.STANDING:
        return False
    return target.state is WaitpointState.PENDING


def _is_unlabelled_decision(delivery: Delivery, target: Waitpoint | None) -> bool:
    """Return True for a decision without the key by which an earlier decision of the approver is found."""
    return target is not None and _request_at(target, delivery).key != delivery.request.key


async def _without_ended_waits(
    tx: Transaction, deliveries: Sequence[Delivery], waitpoints: dict[UUID, list[Waitpoint]]
) -> dict[UUID, list[Waitpoint]]:
    """Return the waitpoints, without waits that have received their undeclared signal and are still open.

    A worker closes such a waitpoint when it reads the signal. A second signal there would never be read.
    """
    targets = _open_targets(deliveries, waitpoints)
    early = [item for item in deliveries if _is_early_wait(item, targets.get(item.execution_id))]
    pending = [
        waitpoint.id
        for delivery in early
        for waitpoint in waitpoints[delivery.execution_id]
        if is_wait_for(waitpoint, delivery.request.name) and waitpoint.state is WaitpointState.PENDING
    ]
    ended = await tx.waits.with_unused_signals(pending) if pending else set[UUID]()
    if not ended:
        return waitpoints
    return {id_: [one for one in group if one.id not in ended] for id_, group in waitpoints.items()}


def _is_addressed(waitpoint: Waitpoint, delivery: Delivery) -> bool:
    """Return True if this waitpoint is addressed. Without a token, its kind must accept signals by name."""
    if delivery.waitpoint_id not in (waitpoint.id, None) or delivery.key not in (waitpoint.key, None):
        return False
    return delivery.token is not None or waitpoint.kind in _ADDRESSABLE[delivery.only_standing]


async def _find_targets(
    tx: Transaction, deliveries: Sequence[Delivery], waitpoints: Mapping[UUID, Sequence[Waitpoint]], now: datetime
) -> dict[UUID, Waitpoint]:
    """Return the addressed waitpoints. Include closed waitpoints, which may have received a repeated signal before."""
    targets = _open_targets(deliveries, waitpoints)
    missed = [delivery for delivery in deliveries if delivery.execution_id not in targets]
    ids = [delivery.waitpoint_id for delivery in missed if delivery.waitpoint_id is not None]
    by_id = await tx.waits.waitpoints(ids) if ids else {}
    for delivery in missed:
        closed = by_id.get(delivery.waitpoint_id) if delivery.waitpoint_id else None
        if delivery.key is not None:
            closed = await tx.waits.last_waitpoint(delivery.execution_id, delivery.key, now)
        if closed is not None and closed.execution_id == delivery.execution_id and _is_addressed(closed, delivery):
            targets[delivery.execution_id] = closed
    return targets


def _lookup(delivery: Delivery, target: Waitpoint | None = None) -> SignalLookup:
    """Return the ids and the key that find an earlier delivery of the same signal."""
    if target is None:
        return SignalLookup(delivery.execution_id, delivery.request.id, delivery.waitpoint_id, delivery.request.key)
    return SignalLookup(delivery.execution_id, delivery.request.id, target.id, _request_at(target, delivery).key)


async def _accepted_by_key(
    tx: Transaction, deliveries: Sequence[Delivery], targets: Mapping[UUID, Waitpoint]
) -> Mapping[UUID, UUID]:
    """Find signals that a waitpoint received before under the same key, if only the waitpoint gives the id or the key.

    `targets` has the waitpoints by execution id.
    """
    found = [(item, targets[item.execution_id]) for item in deliveries if item.execution_id in targets]
    lookups = [lookup for item, target in found if (lookup := _lookup(item, target)) != _lookup(item) and lookup.key]
    return (await tx.waits.received_signals([], lookups)).accepted if lookups else {}


def _check_key(delivery: Delivery, secret: Secret | None, ring: KeyRing, now: datetime) -> None:
    """Refuse a token unless the current key ring still has the secret that verified it, and that secret is valid."""
    if delivery.token is not None and (secret is None or verifying_secret(ring, delivery.token.kid, now) != secret):
        raise invalid_token()


def check_token(token: ParsedToken | None, waitpoint: Waitpoint | None) -> None:
    """Refuse a token that was not minted for this waitpoint."""
    stored = None if waitpoint is None else waitpoint.token
    if token is not None and (stored is None or stored.nonce != token.unverified.nonce):
        raise invalid_token()


def _check_target(delivery: Delivery, waitpoint: Waitpoint | None) -> Waitpoint:
    """Return the addressed waitpoint, or raise `signal_not_expected` or `waitpoint_not_found`."""
    if waitpoint is not None:
        return waitpoint
    id_, name = delivery.execution_id, delivery.key
    if delivery.or_wait:
        message = (
            f"execution {id_} neither declares signal {name!r} nor waits for it now; "
            f"@app.task(signals=[…]) takes it from the submit on"
        )
        raise NotFound("signal_not_expected", message, execution_id=id_, signal=name)
    what = f"waitpoint {name!r}" if name is not None else f"waitpoint {delivery.waitpoint_id}"
    raise NotFound("waitpoint_not_found", f"execution {id_} has no open {what}", execution_id=id_, waitpoint=name)


def _check_signalable(execution: Execution, delivery: Delivery, waitpoint: Waitpoint, now: datetime) -> None:
    if delivery.token is not None:
        require_not_ended(delivery.token.unverified, now)
        check_not_expired(waitpoint, now)
    check_open(execution, waitpoint, now)
