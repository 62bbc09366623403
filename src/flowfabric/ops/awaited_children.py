"""What a suspension must know of the children that it waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from flowfabric.core.bindings import Child
from flowfabric.core.errors import NotFound
from flowfabric.core.flows import MemberFacts
from flowfabric.core.records import Execution
from flowfabric.core.suspending import Room, Suspend
from flowfabric.store.transaction import Transaction


def children_in(item: Suspend) -> list[UUID]:
    """The children that a suspension waits for."""
    return [binding.execution_id for binding in item.bindings if isinstance(binding, Child)]


async def child_facts(tx: Transaction, items: Sequence[Suspend]) -> dict[UUID, MemberFacts]:
    """What is known of all children that the suspensions wait for. Their flows are locked, so it stays true."""
    ids = [id_ for item in items for id_ in children_in(item)]
    return await tx.flows.members.facts(ids) if ids else {}


def with_children(room: Room, execution: Execution, item: Suspend, facts: Mapping[UUID, MemberFacts]) -> Room:
    """The room of a suspension with how its children ended; `child_not_found` for what is not its child."""
    wanted = children_in(item)
    for id_ in wanted:
        if id_ not in facts or facts[id_].parent_id != execution.id:
            message = f"execution {execution.id} has no child {id_}"
            raise NotFound("child_not_found", message, execution_id=execution.id, child_id=id_)
    ended = {id_: facts[id_].state for id_ in wanted if facts[id_].state.is_terminal}
    return replace(room, ended_children=ended) if ended else room
