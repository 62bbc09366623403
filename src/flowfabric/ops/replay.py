"""replay: runs a terminal execution again, from its start or from a named step."""

from __future__ import annotations

from uuid import UUID

from flowfabric.core.control import decide_replay
from flowfabric.core.errors import NotFound
from flowfabric.core.outcomes import Replayed
from flowfabric.core.requests import Command, ReplayFrom
from flowfabric.core.standing import standing
from flowfabric.ops.locking import lock_to_end
from flowfabric.ops.replay_member import member_again, write_again
from flowfabric.ops.writing import write
from flowfabric.store.transaction import Transaction


async def replay(tx: Transaction, namespace: str, id_: UUID, start: ReplayFrom, command: Command) -> Replayed:
    """The new generation. Steps recorded before the named one still answer; without one, none does. Grants end."""
    execution, now = await lock_to_end(tx, namespace, id_)
    again = await member_again(tx, execution, now)
    decision = decide_replay(execution, command, start, now, has_open_group=again.is_blocked)
    if decision.after is not None:
        await write_again(tx, again, now)
        seq = 0 if start.step is None else await _seq_of(tx, id_, start.step)
        await tx.steps.strike(id_, seq, decision.after.generation)
        # A grant was given for a loss of the generation that has ended; it must not open a later one.
        await tx.grants.end(id_)
        await write(tx, [decision])
        keys = [] if execution.plain else await tx.waits.standing_keys(id_)
        if keys:
            await tx.waits.apply([standing(id_, decision.after.generation, keys, now)])
    return decision.answer


async def _seq_of(tx: Transaction, id_: UUID, name: str) -> int:
    step = await tx.steps.named(id_, name)
    if step is None:
        raise NotFound("step_not_found", f"execution {id_} has no recorded step {name!r}", execution_id=id_, step=name)
    return step.seq
