"""suspend: a worker gives its lease up until a condition holds, or hears that it holds already.

Many are suspended in one transaction. A repeated call is answered as the first one: by its key, or, while nobody else
has had the lease, by its content. If a later attempt comes upon a key, the answer is what closed that suspension.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from uuid import UUID

from flowfabric.core.bindings import Fresh
from flowfabric.core.decisions import Decision
from flowfabric.core.errors import Conflict, FlowFabricError
from flowfabric.core.fences import not_found, repeated, require_owner
from flowfabric.core.frozen import record, replace
from flowfabric.core.keyring import KeyRing
from flowfabric.core.minting import Minter
from flowfabric.core.outcomes import Satisfied, Suspended
from flowfabric.core.records import Execution
from flowfabric.core.suspending import EMPTY, Room, Suspend, decide_suspend, shown
from flowfabric.core.waits import Effect, Suspension, Trigger, Waitpoint, WaitpointKind, WaitpointState
from flowfabric.ops.awaited_children import (
    child_facts,
    children_in,
    expect_ends,
    has_strangers,
    lock_with_strangers,
    with_children,
)
from flowfabric.ops.hot import HotOperation, NotTogether
from flowfabric.ops.journaling import record_together
from flowfabric.ops.key_ring import KeySource, can_mint, completed, minting_ring, usable
from flowfabric.ops.storing import written_by
from flowfabric.ops.waiting import observed, observed_by, rooms
from flowfabric.ops.writing import write
from flowfabric.store.transaction import Transaction
from flowfabric.store.unlocked import Seen

Answer = Suspended | Satisfied


def suspending(keys: KeySource) -> HotOperation[Suspend, Answer]:
    """The operation, with the keys that its tokens are signed with."""
    together, alone = partial(_together, keys=keys), partial(_alone, keys=keys)
    again = HotOperation(together, alone, subject=_subject, one_statement=False)
    # Rows are locked by the signals that come at that very moment, as a rule, and free when they are tried again.
    locking = replace(again, others=again)
    return HotOperation(partial(_at_once, keys=keys), alone, subject=_subject, others=locking, for_others=_needs_lock)


async def _at_once(
    tx: Transaction, namespace: str, items: Sequence[Suspend], keys: KeySource
) -> list[Answer | FlowFabricError | None]:
    """Suspends those that bind nothing but new waitpoints, by one look and one write that leaves out rows that were
    touched in between. Whatever else there is to say is said under a lock."""
    simple = [item for item in items if not _needs_lock(item)]
    minting = _must_mint(simple)
    asked = [(_subject(item), item.key) for item in simple]
    seen = await tx.unlocked.before_suspending(asked, minting=minting) if asked else None
    ring = None if seen is None or seen.ring is None or not can_mint(seen.ring, keys) else completed(seen.ring, keys)
    if seen is None or ring is None or ring.active is None:
        return [None] * len(items)
    minter = Minter(ring, namespace)
    decided = {_subject(item): _decided_at_once(seen, item, minter) for item in simple}
    decisions = {id_: decision for id_, decision in decided.items() if decision is not None}
    written, kid = written_by(list(decisions.values())), ring.active.kid if minting else None
    held = await tx.unlocked.write(written, seen, owned=decisions, kid=kid) if decisions else ()
    return [decisions[id_].answer if id_ in held else None for id_ in map(_subject, items)]


def _decided_at_once(seen: Seen, item: Suspend, minter: Minter) -> Decision[Answer] | None:
    """None for a repeated or refused suspend, and for one that binds what is there already."""
    execution = seen.executions.get(_subject(item))
    if not _is_in(execution, minter.namespace) or execution is None or execution.id in seen.suspensions:
        return None
    found = {waitpoint.key: waitpoint for waitpoint in seen.waitpoints.get(execution.id, ())}
    if any(binding.key in found for binding in item.bindings):
        return None
    if item.key is None and repeated(execution, item.fence, item.digest()):
        return None
    try:
        return _decide(execution, item, Room(found, {}), minter, seen.now)
    except FlowFabricError:
        return None


def _needs_lock(item: Suspend) -> bool:
    return bool(item.steps) or bool(children_in(item))


def _subject(item: Suspend) -> UUID:
    return item.fence.execution_id


async def _together(
    tx: Transaction, namespace: str, items: Sequence[Suspend], keys: KeySource
) -> list[Answer | FlowFabricError | None]:
    """Suspends all whose row is free; refusals are answers."""
    parents = [item.fence.execution_id for item in items if children_in(item)]
    # Whoever waits for children keeps them from ending meanwhile; what has a busy flow is looked at alone.
    flows = await tx.flows.lock_of(parents, wait=False) if parents else {}
    found = await tx.executions.lock_free([item.fence.execution_id for item in items])
    here = [item for item in items if _is_in(found.get(item.fence.execution_id), namespace)]
    here = [item for item in here if not children_in(item) or item.fence.execution_id in flows]
    now = await tx.now()
    around = await _around(tx, here, found, keys)
    if around.ring is None:
        # A key is made only with the token that needs it: a refusal must take it back, so each is looked at alone.
        return [None] * len(items)
    answers = await _suspend(tx, Minter(around.ring, namespace), here, found, around, now, shared=True)
    return [answers.get(item.fence.execution_id) for item in items]


async def _alone(tx: Transaction, namespace: str, item: Suspend, keys: KeySource) -> Answer:
    """Suspends one execution, whose row is waited for, or says why not."""
    id_ = item.fence.execution_id
    if children_in(item):
        found = await lock_with_strangers(tx, namespace, item)
    else:
        found = await tx.executions.lock(namespace, [id_])
    if id_ not in found:
        raise not_found(item.fence)
    now = await tx.now()
    around = await _around(tx, [item], found, keys)
    minter = Minter(around.ring or await minting_ring(tx, keys, now), namespace)
    answer = (await _suspend(tx, minter, [item], found, around, now, shared=False))[id_]
    if isinstance(answer, FlowFabricError):
        raise answer
    await expect_ends(tx, [execution for other, execution in found.items() if other != id_])
    return answer


@record(frozen=True, slots=True)
class _Around:
    """What is open on the executions, the suspensions that were opened under the keys of the items, and the key ring;
    None if it cannot be minted with and must be."""

    waitpoints: dict[UUID, list[Waitpoint]]
    named: dict[UUID, Suspension]
    ring: KeyRing | None


async def _suspend(
    tx: Transaction, minter: Minter, items: Sequence[Suspend], found: dict[UUID, Execution], around: _Around,
    now: datetime, *, shared: bool,
) -> dict[UUID, Answer | FlowFabricError]:  # fmt: skip
    bound = {item.fence.execution_id: {binding.key for binding in item.bindings} for item in items}
    spaces = await rooms(tx, around.waitpoints, bound)
    children = await child_facts(tx, items)
    if shared:
        # Strangers are locked in order with the one that waits, which a batch cannot do.
        items = [item for item in items if not has_strangers(item, children)]
    answers: dict[UUID, Answer | FlowFabricError] = {}
    decisions: dict[UUID, tuple[Suspend, Decision[Answer]]] = {}
    for item in items:
        execution = found[item.fence.execution_id]
        try:
            known = around.named.get(execution.id) or await _given_up(tx, execution, item)
            before = None if known is None else await _answered_before(tx, minter, execution, known, item, now)
            if before is None:
                room = with_children(spaces.get(execution.id, EMPTY), execution, item, children, found)
                decisions[execution.id] = item, _decide(execution, item, room, minter, now)
            else:
                answers[execution.id] = before
        except FlowFabricError as error:
            answers[execution.id] = error
    await _write(tx, found, decisions, now, shared=shared)
    return answers | await _with_signals(tx, [decision for _, decision in decisions.values()])


def _decide(execution: Execution, item: Suspend, room: Room, minter: Minter, now: datetime) -> Decision[Answer]:
    owned = require_owner(execution, item.fence, now)
    if item.steps:
        owned = replace(owned, step_seq=owned.step_seq + len(item.steps))
    return decide_suspend(owned, item, room, minter, now)


async def _write(
    tx: Transaction, found: dict[UUID, Execution], decisions: dict[UUID, tuple[Suspend, Decision[Answer]]],
    now: datetime, *, shared: bool,
) -> None:  # fmt: skip
    try:
        await record_together(tx, [(found[id_], item.steps) for id_, (item, _) in decisions.items()], now)
    except FlowFabricError:
        # Some of the steps are written by now; nothing of a shared transaction may be kept.
        if shared:
            raise NotTogether from None
        raise
    await write(tx, [decision for _, decision in decisions.values()])


async def _around(tx: Transaction, items: Sequence[Suspend], found: dict[UUID, Execution], keys: KeySource) -> _Around:
    """Everything that is read after the executions are locked, by one statement; nothing hangs on plain ones."""
    linked = [item for item in items if not found[item.fence.execution_id].plain]
    ids = [item.fence.execution_id for item in linked]
    asked = [(id_, found[id_].generation, item.key) for id_, item in zip(ids, linked, strict=True) if item.key]
    minting = _must_mint(items)
    waitpoints, named, ring = await tx.waits.before_suspending(ids, asked, minting=minting)
    if ring is not None:
        ring = usable(ring, keys) if minting else completed(ring, keys)
    return _Around(waitpoints, named, ring)


async def _given_up(tx: Transaction, execution: Execution, item: Suspend) -> Suspension | None:
    """The suspension without a key that this very request opened, while nobody else has given up the lease."""
    if item.key is not None or not repeated(execution, item.fence, item.digest()):
        return None
    # A later owner may have found waits of its own satisfied since, so it need not be the last one.
    return await tx.waits.last_suspension(execution.id, lease_id=item.fence.lease_id)


async def _answered_before(
    tx: Transaction, minter: Minter, execution: Execution, known: Suspension, item: Suspend, now: datetime
) -> Answer:
    if (known.lease_id, known.epoch) == (item.fence.lease_id, item.fence.epoch):
        return await _first_answer(tx, minter, execution, known, item)
    require_owner(execution, item.fence, now)
    assert known.closed_by is not None, "its execution is active, so no suspension of it is open"
    return Satisfied(known.id, known.closed_by, await observed(tx, known))


async def _first_answer(
    tx: Transaction, minter: Minter, execution: Execution, known: Suspension, item: Suspend
) -> Answer:
    if known.digest != item.digest():
        message = f"suspension {known.id} was opened under the key {item.key!r} with other content; use another key"
        raise Conflict("idempotency_mismatch", message, execution_id=execution.id, suspension_id=known.id)
    signals = await observed(tx, known) if known.closed_by is Trigger.SIGNALS else ()
    if signals and all(signal.effect is not Effect.SATISFIED for signal in signals):
        # No signal ended it: all were there before, it was over at once.
        return Satisfied(known.id, Trigger.SIGNALS, signals)
    bound = await tx.waits.bound_waitpoints(execution.id, known.number)
    by_key = {waitpoint.key: _as_it_was(waitpoint, known) for waitpoint in bound}
    for key in (binding.key for binding in item.bindings if binding.key not in by_key):
        # It was given back, and a later suspension has bound it.
        kept = await tx.waits.last_waitpoint(execution.id, key, known.opened_at)
        assert kept is not None, "what a suspension has bound is kept as long as its execution"
        by_key[key] = _as_it_was(kept, known)
    return Suspended(known.id, tuple(shown(by_key[binding.key], minter) for binding in item.bindings))


def _as_it_was(waitpoint: Waitpoint, known: Suspension) -> Waitpoint:
    """A waitpoint as it was when the suspension bound it, though it may have been given back since."""
    if waitpoint.kind is WaitpointKind.STANDING or waitpoint.state is WaitpointState.CLOSED:
        return waitpoint
    return waitpoint if known.closed_at is None else replace(waitpoint, expires_at=known.timeout_at)


async def _with_signals(tx: Transaction, decisions: Sequence[Decision[Answer]]) -> dict[UUID, Answer]:
    answers = {item.before.id: item.answer for item in decisions}
    satisfied = {id_: answer for id_, answer in answers.items() if isinstance(answer, Satisfied)}
    waits = [item.waits for item in decisions if item.before.id in satisfied and item.waits is not None]
    signals = await observed_by(tx, [suspension for changes in waits for suspension in changes.opened])
    return answers | {id_: replace(satisfied[id_], signals=found) for id_, found in signals.items()}


def _must_mint(items: Sequence[Suspend]) -> bool:
    return any(isinstance(binding, Fresh) for item in items for binding in item.bindings)


def _is_in(execution: Execution | None, namespace: str) -> bool:
    return execution is not None and execution.namespace == namespace
