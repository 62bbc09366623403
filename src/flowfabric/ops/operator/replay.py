"""replay: run a terminal execution again, from its start or from a named step."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from flowfabric.core.errors import NotFound
from flowfabric.core.executions.operator import decide_replay
from flowfabric.core.executions.outcomes import Replayed
from flowfabric.core.executions.requests import AuditInfo, ReplayFrom
from flowfabric.core.waits.records import make_standing_waitpoints
from flowfabric.ops.apply import write
from flowfabric.ops.flows.replay import plan_replay, write_replay
from flowfabric.ops.locks import lock_to_end
from flowfabric.ops.operation import operation
from flowfabric.store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """A replay of one execution from `start`, and who requests it."""

    execution_id: UUID
    start: ReplayFrom
    audit: AuditInfo


def _names_a_generation(request: ReplayRequest) -> bool:
    """Return True if a repeat cannot replay the generation that the first request started."""
    return request.start.generation is not None


@operation(can_repeat=_names_a_generation)
async def replay(tx: Transaction, namespace: str, request: ReplayRequest) -> Replayed:
    """Start the next generation of the execution, and return its number and state.

    Steps recorded before the named step stay valid. Without a named step, no step stays valid. Open grants end.
    """
    id_, start = request.execution_id, request.start
    execution, now = await lock_to_end(tx, namespace, id_)
    plan = await plan_replay(tx, execution, now)
    decision = decide_replay(execution, request.audit, start, now, has_open_group=plan.is_blocked)
    if decision.after is not None:
        await write_replay(tx, plan, now)
        seq = 0 if start.step is None else await _step_seq(tx, id_, start.step)
        await tx.steps.strike(id_, seq, decision.after.generation)
        # A reclaim grant is for a lost lease of the ended generation. No later generation may be reclaimed with it.
        await tx.grants.end(id_)
        await write(tx, [decision])
        await tx.routes.restore(execution)
        if execution.signal_seq:
            # The next generation may run other code, which can read them.
            await tx.waits.restore_skipped_signals(id_)
        declared = {} if execution.is_standalone else await tx.waits.declared_signals(id_)
        if declared:
            await tx.waits.apply([make_standing_waitpoints(id_, decision.after.generation, declared, now)])
    return decision.outcome


async def _step_seq(tx: Transaction, id_: UUID, name: str) -> int:
    step = await tx.steps.get(id_, name)
    if step is None:
        raise NotFound("step_not_found", f"execution {id_} has no recorded step {name!r}", execution_id=id_, step=name)
    return step.seq
