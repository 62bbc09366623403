"""What a suspension must know of the executions whose end it waits for: its own children, or strangers.

The flow's lock keeps children from ending meanwhile. A stranger's own row is locked for that, and is plain no longer,
so that its end goes the way that tells whoever waits. One that is awaited already needs no lock: its signal has come to
the open waitpoint or will, and whoever ends it locks the waiting row after its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from flowfabric.core.bindings import Child
from flowfabric.core.decisions import Decision
from flowfabric.core.errors import NotFound
from flowfabric.core.flows import MemberFacts
from flowfabric.core.frozen import replace
from flowfabric.core.records import Execution
from flowfabric.core.suspending import Room, Suspend
from flowfabric.ops.storing import store
from flowfabric.store.transaction import Transaction


def children_in(item: Suspend) -> list[UUID]:
    """The children that a suspension waits for."""
    return [binding.execution_id for binding in item.bindings if isinstance(binding, Child)]


async def child_facts(tx: Transaction, items: Sequence[Suspend]) -> dict[UUID, MemberFacts]:
    """What is known of all children that the suspensions wait for. Their flows are locked, so it stays true."""
    ids = [id_ for item in items for id_ in children_in(item)]
    return await tx.flows.members.facts(ids) if ids else {}


def has_strangers(item: Suspend, facts: Mapping[UUID, MemberFacts]) -> bool:
    """True if the suspension waits for others than its own children."""
    parent = item.fence.execution_id
    return any(id_ not in facts or facts[id_].parent_id != parent for id_ in children_in(item))


async def lock_with_strangers(tx: Transaction, namespace: str, item: Suspend) -> dict[UUID, Execution]:
    """The suspending execution and the strangers that it is about to wait for, locked, their flows before them."""
    id_, facts = item.fence.execution_id, await child_facts(tx, [item])
    is_mixed = has_strangers(item, facts)
    strangers = await _strangers(tx, item, facts) if is_mixed else []
    await tx.flows.lock_of([id_, *strangers], wait=True)
    found = await tx.executions.lock(namespace, [id_, *strangers])
    late = [other for other in await _strangers(tx, item, facts) if other not in strangers] if is_mixed else []
    if late:
        # Its waitpoint was closed between the two statements. Out of order, but a deadlock is retried.
        found |= await tx.executions.lock(namespace, late)
    return found


async def expect_ends(tx: Transaction, strangers: Sequence[Execution]) -> None:
    """Lets the ends of strangers go the way on which somebody who waits is told."""
    plain = [item for item in strangers if item.plain and not item.state.is_terminal]
    await store(tx, [Decision(None, item, replace(item, plain=False)) for item in plain])


def with_children(
    room: Room, execution: Execution, item: Suspend, facts: Mapping[UUID, MemberFacts], locked: Collection[UUID]
) -> Room:
    """The room of a suspension with how those ended that it waits for; `child_not_found` for what is not there, not in
    this namespace, or the execution itself."""
    wanted = children_in(item)
    awaited = {waitpoint.child_id for waitpoint in room.waitpoints.values()}
    for id_ in wanted:
        own = id_ in facts and facts[id_].parent_id == execution.id
        if id_ == execution.id or not (own or id_ in locked or id_ in awaited):
            message = f"there is no execution {id_} in this namespace that execution {execution.id} could wait for"
            raise NotFound("child_not_found", message, execution_id=execution.id, child_id=id_)
    ended = {id_: facts[id_].state for id_ in wanted if id_ in facts and facts[id_].state.is_terminal}
    return replace(room, ended_children=ended) if ended else room


async def _strangers(tx: Transaction, item: Suspend, facts: Mapping[UUID, MemberFacts]) -> list[UUID]:
    """Those of the awaited executions that are not its children, and for which it has no open waitpoint yet."""
    parent = item.fence.execution_id
    waitpoints = (await tx.waits.open_waitpoints([parent])).get(parent, [])
    known = {(waitpoint.key, waitpoint.child_id) for waitpoint in waitpoints}
    wanted = [binding for binding in item.bindings if isinstance(binding, Child)]
    return [
        binding.execution_id
        for binding in wanted
        if binding.execution_id in facts
        and facts[binding.execution_id].parent_id != parent
        and (binding.key, binding.execution_id) not in known
    ]
