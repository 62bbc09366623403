"""replay: run an ended execution again, from its start or a named step. replay_flow: run failed members again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from flowfabric.core.errors import NotFound
from flowfabric.core.executions.decision import Decision
from flowfabric.core.executions.operator import decide_replay, decide_revival
from flowfabric.core.executions.outcomes import Replayed
from flowfabric.core.executions.records import Execution
from flowfabric.core.executions.requests import AuditInfo, ReplayFrom
from flowfabric.core.fast_dataclass import replace
from flowfabric.core.waits.records import make_standing_waitpoints
from flowfabric.ops.apply import write
from flowfabric.ops.flows.extend import lock_flow
from flowfabric.ops.flows.replay import (
    BATCH,
    ReplayPlan,
    check_can_replay,
    plan_replay,
    plan_replays,
    write_plan,
)
from flowfabric.ops.locks import lock_to_end
from flowfabric.ops.operation import operation
from flowfabric.store.transaction import Transaction

_MAX_REPLAYED = 100
_FROM_START = ReplayFrom()


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """A replay of one execution from `start`, and who requests it."""

    execution_id: UUID
    start: ReplayFrom
    audit: AuditInfo
    downstream: bool = True


@dataclass(frozen=True, slots=True)
class FlowReplayRequest:
    """A replay of up to 100 members of a flow with ids above `after`, which failed until `ended_until`."""

    flow_id: UUID
    ended_until: datetime
    after: UUID
    audit: AuditInfo


@dataclass(frozen=True, slots=True)
class FlowReplayBatch:
    """The members that one transaction replayed and revived, and those that reached their limit of replays.

    `last` is the last failed member that was considered, or None if there are no more.
    """

    replayed: tuple[UUID, ...]
    revived: int
    exhausted: tuple[UUID, ...]
    last: UUID | None


def _names_a_generation(request: ReplayRequest) -> bool:
    """Return True if a repeat cannot replay the generation that the first request started."""
    return request.start.generation is not None


@operation(can_repeat=_names_a_generation)
async def replay(tx: Transaction, namespace: str, request: ReplayRequest) -> Replayed:
    """Start the next generation of the execution, and return its number and state.

    Steps recorded before the named step stay valid. Without a named step, no step stays valid. Open grants end. Members
    that were skipped because of the execution are brought back, unless the request excludes them.
    """
    id_, start = request.execution_id, request.start
    execution, now = await lock_to_end(tx, namespace, id_)
    plan = await plan_replay(tx, execution, now, downstream=request.downstream)
    decision = decide_replay(execution, request.audit, start, now, has_open_group=plan.reopening.must_wait(id_))
    if decision.after is None:
        return decision.outcome
    seq = 0 if start.step is None else await _step_seq(tx, id_, start.step)
    await write_plan(tx, plan, now)
    await _clear(tx, execution, seq, decision.after.generation)
    await _start(tx, [decision], now)
    return replace(decision.outcome, revived=await _revive(tx, plan, request.audit, now))


@operation()
async def replay_flow(tx: Transaction, namespace: str, request: FlowReplayRequest) -> FlowReplayBatch:
    """Replay failed members of a flow, and bring back the members that are skipped because of failures.

    A repeat replays no member again, because its next failure is later than `ended_until`.
    """
    flow = await lock_flow(tx, namespace, request.flow_id)
    check_can_replay(flow, flow.id)
    ids = await tx.flows.failed_members(flow.id, request.ended_until, request.after, _MAX_REPLAYED)
    executions = list((await tx.executions.lock(None, ids)).values()) if ids else []
    able = [execution for execution in executions if execution.replay_count < execution.policy.max_replays]
    exhausted = tuple(execution.id for execution in executions if execution not in able)
    left_behind = await tx.flows.left_behind(flow.id, BATCH) if len(ids) < _MAX_REPLAYED else []
    last = ids[-1] if len(ids) == _MAX_REPLAYED else None
    if not able and not left_behind:
        return FlowReplayBatch((), 0, exhausted, last)
    now = await tx.now()
    plan = await plan_replays(tx, flow, able, left_behind, now)
    if not able and not plan.reopening.revived:
        return FlowReplayBatch((), 0, exhausted, last)
    await write_plan(tx, plan, now)
    decisions = [
        decide_replay(item, request.audit, _FROM_START, now, has_open_group=plan.reopening.must_wait(item.id))
        for item in able
    ]
    for execution in able:
        await _clear(tx, execution, 0, execution.generation + 1)
    await _start(tx, decisions, now)
    revived = await _revive(tx, plan, request.audit, now)
    if len(left_behind) == BATCH:
        last = request.after  # There may be more such members.
    return FlowReplayBatch(tuple(item.id for item in able), revived, exhausted, last)


@operation(read_only=True)
async def read_time(tx: Transaction, namespace: str, request: None) -> datetime:
    """Return the time of the store."""
    return await tx.now()


async def _clear(tx: Transaction, execution: Execution, seq: int, generation: int) -> None:
    """End what belongs to the ended generation."""
    await tx.steps.strike(execution.id, seq, generation)
    # A reclaim grant is for a lost lease of the ended generation. No later generation may be reclaimed with it.
    await tx.grants.end(execution.id)


async def _start(tx: Transaction, decisions: Sequence[Decision[Replayed]], now: datetime) -> None:
    """Write the new generations of executions, with what they need to run."""
    await write(tx, decisions)
    starting = [decision.after for decision in decisions if decision.after is not None]
    for execution in {execution.route_id: execution for execution in starting}.values():
        await tx.routes.restore(execution)
    for execution in starting:
        if execution.signal_seq:
            # The next generation may run other code, which can read them.
            await tx.waits.restore_skipped_signals(execution.id)
    linked = {execution.id: execution.generation for execution in starting if not execution.is_standalone}
    declared = await tx.waits.declared_signals(list(linked)) if linked else {}
    if declared:
        await tx.waits.apply(
            [make_standing_waitpoints(id_, linked[id_], signals, now) for id_, signals in declared.items()]
        )


async def _revive(tx: Transaction, plan: ReplayPlan, audit: AuditInfo, now: datetime) -> int:
    """Write the skipped members that the plan brings back, and return how many there are."""
    ids = sorted(plan.reopening.revived)
    for start in range(0, len(ids), BATCH):
        executions = await tx.executions.lock(None, ids[start : start + BATCH])
        for execution in executions.values():
            if execution.started_at is not None:
                await _clear(tx, execution, 0, execution.generation + 1)
        decisions = [
            decide_revival(
                execution,
                audit,
                now,
                upstream_id=plan.reopening.revived[execution.id],
                has_open_group=plan.reopening.must_wait(execution.id),
            )
            for execution in executions.values()
        ]
        await _start(tx, decisions, now)
    return len(ids)


async def _step_seq(tx: Transaction, id_: UUID, name: str) -> int:
    step = await tx.steps.get(id_, name)
    if step is None:
        raise NotFound("step_not_found", f"execution {id_} has no recorded step {name!r}", execution_id=id_, step=name)
    return step.seq
