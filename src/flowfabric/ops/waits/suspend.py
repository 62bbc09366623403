"""suspend: a worker gives up its lease until a condition holds, or learns that the condition holds already.

```text
suspend ──> locked_batch      rows that are free, many in one transaction
                │ row or flow busy, a wait for an execution that is no child, or no key to mint with
                └──> locked_batch      once more: signals that arrive at this moment hold row locks only briefly
                         │ still undecided
                         └──> locked_single
```

A repeated call returns the outcome of the first call, also if the first call kept the lease and consumed signals. The
repeat is recognized by its key or by its suspension id. A call that gave up the lease is also recognized by equal
content under that lease. If a later lease uses the same key or id, the outcome names the end of the first suspension.

A suspension may wait for the end of other executions. While its flow is locked, its own children cannot end. The row of
any other execution is locked, and becomes linked, so that its end signals the waiting executions. An execution for
which this one already has an open waitpoint needs no lock. Its signal has arrived or will arrive there, because the
transaction that ends the execution then locks the waiting row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from uuid import UUID

from flowfabric.core.errors import Conflict, FlowFabricError, NotFound
from flowfabric.core.executions.decision import Decision
from flowfabric.core.executions.outcomes import Satisfied, Suspended
from flowfabric.core.executions.records import Execution
from flowfabric.core.executions.requests import execution_not_found, find_repeated, require_owner
from flowfabric.core.fast_dataclass import record, replace
from flowfabric.core.flows.records import MemberFacts
from flowfabric.core.tokens.key_ring import KeyRing
from flowfabric.core.tokens.token import Minter
from flowfabric.core.waits.bindings import Child, NewWaitpoint
from flowfabric.core.waits.records import Effect, Suspension, Trigger, Waitpoint, WaitpointKind, WaitpointState
from flowfabric.core.waits.suspend import NO_INPUTS, Suspend, SuspendInputs, decide_suspend, make_open_waitpoint
from flowfabric.ops.apply import write
from flowfabric.ops.keys import KeySource, complete_ring, ensure_minting_ring, usable_ring
from flowfabric.ops.leases.checkpoint import record_steps_of
from flowfabric.ops.operation import BatchOperation, BatchRejected
from flowfabric.ops.waits.load import load_signals, load_signals_of, load_suspend_inputs
from flowfabric.ops.write_set import store
from flowfabric.store.records import SuspensionName
from flowfabric.store.transaction import Transaction

SuspendOutcome = Suspended | Satisfied


class SuspendExecution(BatchOperation[Suspend, SuspendOutcome]):
    """Suspend executions; `keys` sign the tokens of new waitpoints."""

    name = "suspend"
    single_statement = False
    batch_path = "locked_batch"

    def __init__(self, keys: KeySource, fallback: BatchOperation[Suspend, SuspendOutcome] | None = None) -> None:
        super().__init__(fallback)
        self.keys = keys

    def key(self, request: Suspend) -> UUID:
        return request.fence.execution_id

    async def run_batch(
        self, tx: Transaction, namespace: str, requests: Sequence[Suspend]
    ) -> list[SuspendOutcome | FlowFabricError | None]:
        """Suspend all executions whose row is not locked. Return refusals instead of raising them."""
        parents = [request.fence.execution_id for request in requests if _awaited_ids(request)]
        # While the flow is locked, children cannot end. Requests with a busy flow stay undecided.
        flows = await tx.flows.lock_of(parents, wait=False) if parents else {}
        executions = await tx.executions.lock_free([request.fence.execution_id for request in requests])
        local = [request for request in requests if _is_in(executions.get(request.fence.execution_id), namespace)]
        ready = [request for request in local if not _awaited_ids(request) or request.fence.execution_id in flows]
        now = await tx.now()
        context = await _load_context(tx, ready, executions, self.keys)
        if context.ring is None:
            # No key can mint. `run_one` creates a key, so that a refusal of the request also rolls back that key.
            return [None] * len(requests)
        minter = Minter(context.ring, namespace)
        outcomes = await _suspend(tx, minter, ready, executions, context, now, is_shared=True)
        return [outcomes.get(request.fence.execution_id) for request in requests]

    async def run_one(self, tx: Transaction, namespace: str, request: Suspend) -> SuspendOutcome:
        """Wait for the lock on the row, and suspend the execution. Raise if the suspend is refused."""
        id_ = request.fence.execution_id
        if _awaited_ids(request):
            executions = await _lock_with_awaited(tx, namespace, request)
        else:
            executions = await tx.executions.lock(namespace, [id_])
        if id_ not in executions:
            raise execution_not_found(id_)
        now = await tx.now()
        context = await _load_context(tx, [request], executions, self.keys)
        minter = Minter(context.ring or await ensure_minting_ring(tx, self.keys, now), namespace)
        outcome = (await _suspend(tx, minter, [request], executions, context, now, is_shared=False))[id_]
        if isinstance(outcome, FlowFabricError):
            raise outcome
        await _link_awaited(tx, [execution for other, execution in executions.items() if other != id_])
        return outcome


def make_suspend(keys: KeySource) -> SuspendExecution:
    """Return the operation that suspends the executions of one engine."""
    return SuspendExecution(keys, fallback=SuspendExecution(keys))


@record(frozen=True, slots=True)
class _SuspendContext:
    """The state that was read after the executions were locked.

    `waitpoints` are open. `existing` holds the suspensions that were opened under the keys or the ids of the requests.
    `ring` is None if tokens must be minted and the key ring has no usable key.
    """

    waitpoints: dict[UUID, list[Waitpoint]]
    existing: dict[UUID, Suspension]
    ring: KeyRing | None


async def _load_context(
    tx: Transaction, requests: Sequence[Suspend], executions: dict[UUID, Execution], keys: KeySource
) -> _SuspendContext:
    """Read the context by one statement. Skip standalone executions, which have no waitpoints or suspensions."""
    linked = [request for request in requests if not executions[request.fence.execution_id].is_standalone]
    ids = [request.fence.execution_id for request in linked]
    names = [
        SuspensionName(id_, request.suspension_id, executions[id_].generation, request.key)
        for id_, request in zip(ids, linked, strict=True)
    ]
    mints = any(isinstance(binding, NewWaitpoint) for request in requests for binding in request.bindings)
    waitpoints, existing, ring = await tx.waits.read_for_suspend(names, minting=mints)
    if ring is not None:
        ring = usable_ring(ring, keys) if mints else complete_ring(ring, keys)
    return _SuspendContext(waitpoints, existing, ring)


async def _suspend(
    tx: Transaction,
    minter: Minter,
    requests: Sequence[Suspend],
    executions: dict[UUID, Execution],
    context: _SuspendContext,
    now: datetime,
    *,
    is_shared: bool,
) -> dict[UUID, SuspendOutcome | FlowFabricError]:
    inputs = await load_suspend_inputs(
        tx, context.waitpoints, {request.fence.execution_id: request for request in requests}
    )
    facts = await _awaited_facts(tx, requests)
    if is_shared:
        # A wait for an execution that is no child must lock both in id order, which a batch cannot do.
        requests = [request for request in requests if not _awaits_others(request, facts)]
    outcomes: dict[UUID, SuspendOutcome | FlowFabricError] = {}
    decisions: dict[UUID, tuple[Suspend, Decision[SuspendOutcome]]] = {}
    for request in requests:
        execution = executions[request.fence.execution_id]
        try:
            existing = context.existing.get(execution.id) or await _find_repeated(tx, execution, request)
            if existing is None:
                own_inputs = inputs.get(execution.id, NO_INPUTS)
                own_inputs = _with_awaited(own_inputs, execution, request, facts, executions)
                decisions[execution.id] = request, _decide(execution, request, own_inputs, minter, now)
            else:
                outcomes[execution.id] = await _repeat(tx, minter, execution, existing, request, now)
        except FlowFabricError as error:
            outcomes[execution.id] = error
    await _write(tx, executions, decisions, now, is_shared=is_shared)
    return outcomes | await _add_signals(tx, [decision for _, decision in decisions.values()])


def _decide(
    execution: Execution, request: Suspend, inputs: SuspendInputs, minter: Minter, now: datetime
) -> Decision[SuspendOutcome]:
    owned = require_owner(execution, request.fence, now)
    return decide_suspend(owned, request, inputs, minter, now)


async def _write(
    tx: Transaction,
    executions: dict[UUID, Execution],
    decisions: dict[UUID, tuple[Suspend, Decision[SuspendOutcome]]],
    now: datetime,
    *,
    is_shared: bool,
) -> None:
    try:
        steps = [(executions[id_], request.steps) for id_, (request, _) in decisions.items()]
        await record_steps_of(tx, steps, now)
    except FlowFabricError:
        # Some of the steps are already written, so a shared transaction must be rolled back.
        if is_shared:
            raise BatchRejected from None
        raise
    await write(tx, [decision for _, decision in decisions.values()])


async def _add_signals(tx: Transaction, decisions: Sequence[Decision[SuspendOutcome]]) -> dict[UUID, SuspendOutcome]:
    """Return the outcomes. If a suspension was satisfied immediately, add its signals to the outcome."""
    outcomes = {decision.before.id: decision.outcome for decision in decisions}
    satisfied = {id_: outcome for id_, outcome in outcomes.items() if isinstance(outcome, Satisfied)}
    waits = [decision.waits for decision in decisions if decision.before.id in satisfied and decision.waits is not None]
    signals = await load_signals_of(tx, [suspension for changes in waits for suspension in changes.opened])
    return outcomes | {id_: replace(satisfied[id_], signals=received) for id_, received in signals.items()}


# Repeated calls.


async def _find_repeated(tx: Transaction, execution: Execution, request: Suspend) -> Suspension | None:
    """Return the suspension that an earlier, equal request without a key opened under the same lease, if any."""
    if request.key is not None or not find_repeated(execution, request.fence, request.digest()):
        return None
    # A later lease may have opened suspensions that were satisfied immediately, so search by the lease id.
    return await tx.waits.last_suspension(execution.id, lease_id=request.fence.lease_id)


async def _repeat(
    tx: Transaction, minter: Minter, execution: Execution, existing: Suspension, request: Suspend, now: datetime
) -> SuspendOutcome:
    if (existing.lease_id, existing.epoch) == (request.fence.lease_id, request.fence.epoch):
        return await _first_outcome(tx, minter, execution, existing, request)
    require_owner(execution, request.fence, now)
    assert existing.closed_by is not None, "the execution is active, so none of its suspensions is open"
    return Satisfied(existing.id, existing.closed_by, await load_signals(tx, existing))


async def _first_outcome(
    tx: Transaction, minter: Minter, execution: Execution, existing: Suspension, request: Suspend
) -> SuspendOutcome:
    signals = await load_signals(tx, existing) if existing.closed_by is Trigger.SIGNALS else ()
    is_kept = execution.lease is not None and execution.lease.id == existing.lease_id
    # If all signals arrived before the suspension was opened, it was satisfied immediately.
    is_immediate = is_kept or (bool(signals) and all(signal.effect is not Effect.SATISFIED for signal in signals))
    if existing.digest != request.digest():
        raise _other_content(existing, request, is_suspended=not is_immediate)
    if is_immediate:
        return Satisfied(existing.id, Trigger.SIGNALS, signals)
    bound = await tx.waits.bound_waitpoints(execution.id, existing.number)
    by_key = {waitpoint.key: _as_bound(waitpoint, existing) for waitpoint in bound}
    for key in (binding.key for binding in request.bindings if binding.key not in by_key):
        # The suspension released this waitpoint, and a later suspension has bound it.
        kept = await tx.waits.last_waitpoint(execution.id, key, existing.opened_at)
        assert kept is not None, "a bound waitpoint is kept as long as its execution"
        by_key[key] = _as_bound(kept, existing)
    return Suspended(
        existing.id, tuple(make_open_waitpoint(by_key[binding.key], minter) for binding in request.bindings)
    )


def _other_content(existing: Suspension, request: Suspend, *, is_suspended: bool) -> Conflict:
    name = f"id {existing.id}" if existing.id == request.suspension_id else f"key {request.key!r}"
    outcome = "suspended" if is_suspended else "satisfied"
    message = f"a suspension with other content was opened under the {name} ({outcome}); use another"
    fields = {"execution_id": existing.execution_id, "suspension_id": existing.id, "outcome": outcome}
    return Conflict("idempotency_mismatch", message, **fields)


def _as_bound(waitpoint: Waitpoint, existing: Suspension) -> Waitpoint:
    """Return a waitpoint as it was when the suspension bound it, even if the suspension has released it since."""
    if waitpoint.kind is WaitpointKind.STANDING or waitpoint.state is WaitpointState.CLOSED:
        return waitpoint
    return waitpoint if existing.closed_at is None else replace(waitpoint, expires_at=existing.timeout_at)


# Waits for the end of other executions: children, or any others.


def _awaited_ids(request: Suspend) -> list[UUID]:
    return [binding.execution_id for binding in request.bindings if isinstance(binding, Child)]


async def _awaited_facts(tx: Transaction, requests: Sequence[Suspend]) -> dict[UUID, MemberFacts]:
    """Return the facts of all awaited executions. Their flows or rows are locked, so the facts stay true."""
    ids = [id_ for request in requests for id_ in _awaited_ids(request)]
    return await tx.members.facts(ids) if ids else {}


def _awaits_others(request: Suspend, facts: Mapping[UUID, MemberFacts]) -> bool:
    """Return True if the suspension waits for an execution that is not its own child."""
    parent = request.fence.execution_id
    return any(id_ not in facts or facts[id_].parent_id != parent for id_ in _awaited_ids(request))


async def _lock_with_awaited(tx: Transaction, namespace: str, request: Suspend) -> dict[UUID, Execution]:
    """Lock the flows first, then the suspending execution and the executions that it starts to wait for."""
    id_, facts = request.fence.execution_id, await _awaited_facts(tx, [request])
    awaits_others = _awaits_others(request, facts)
    others = await _newly_awaited(tx, request, facts) if awaits_others else []
    await tx.flows.lock_of([id_, *others], wait=True)
    executions = await tx.executions.lock(namespace, [id_, *others])
    late = []
    if awaits_others:
        late = [other for other in await _newly_awaited(tx, request, facts) if other not in others]
    if late:
        # A waitpoint was closed between the two statements. These locks are out of order, but a deadlock is retried.
        executions |= await tx.executions.lock(namespace, late)
    return executions


async def _newly_awaited(tx: Transaction, request: Suspend, facts: Mapping[UUID, MemberFacts]) -> list[UUID]:
    """Return the awaited executions that are no children of the waiting one, and for which it has no waitpoint yet."""
    parent = request.fence.execution_id
    waitpoints = (await tx.waits.open_waitpoints([parent])).get(parent, [])
    awaited = {(waitpoint.key, waitpoint.child_id) for waitpoint in waitpoints}
    children = [binding for binding in request.bindings if isinstance(binding, Child)]
    return [
        binding.execution_id
        for binding in children
        if binding.execution_id in facts
        and facts[binding.execution_id].parent_id != parent
        and (binding.key, binding.execution_id) not in awaited
    ]


async def _link_awaited(tx: Transaction, others: Sequence[Execution]) -> None:
    """Mark awaited executions as linked, so that their end signals the waiting executions."""
    standalone = [execution for execution in others if execution.is_standalone and not execution.state.is_terminal]
    await store(tx, [Decision(None, execution, replace(execution, is_standalone=False)) for execution in standalone])


def _with_awaited(
    inputs: SuspendInputs,
    execution: Execution,
    request: Suspend,
    facts: Mapping[UUID, MemberFacts],
    locked: Collection[UUID],
) -> SuspendInputs:
    """Return the inputs with the states of the awaited executions that have ended.

    Raise `child_not_found` if an awaited execution is not in this namespace, or is the waiting execution itself.
    """
    ids = _awaited_ids(request)
    awaited = {waitpoint.child_id for waitpoint in inputs.waitpoints.values()}
    for id_ in ids:
        is_child = id_ in facts and facts[id_].parent_id == execution.id
        if id_ == execution.id or not (is_child or id_ in locked or id_ in awaited):
            message = f"there is no execution {id_} in this namespace that execution {execution.id} could wait for"
            raise NotFound("child_not_found", message, execution_id=execution.id, child_id=id_)
    ended = {id_: facts[id_].state for id_ in ids if id_ in facts and facts[id_].state.is_terminal}
    return replace(inputs, ended_children=ended) if ended else inputs


def _is_in(execution: Execution | None, namespace: str) -> bool:
    return execution is not None and execution.namespace == namespace
