"""Plan and write the changes that replays make in a flow: edges open again, and skipped members are brought back.

`core/flows/reopening.py` decides them in memory, since the lock of the flow covers its edges and groups. They are
written in the same transaction as the replays, in batches of 1,000 rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from flowfabric.core.errors import Refused
from flowfabric.core.executions.decision import Decision, make_decision
from flowfabric.core.executions.records import Execution
from flowfabric.core.executions.transitions import BLOCK, apply_transition
from flowfabric.core.fast_dataclass import replace
from flowfabric.core.flows.records import DEPENDENCIES, EdgeGroup, FlowRecord, StoredEdge, counts_as_bad
from flowfabric.core.flows.reopening import Reopening
from flowfabric.core.flows.resolution import EdgeContext
from flowfabric.ops.write_set import store
from flowfabric.store.transaction import Transaction

BATCH = 1_000
_MAX_ROUNDS = 6


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What replays change in a flow. `blocked` are members that wait for their dependencies again."""

    flow: FlowRecord | None = None
    reopening: Reopening = field(default_factory=Reopening)
    blocked: tuple[Execution, ...] = ()


async def plan_replay(tx: Transaction, execution: Execution, now: datetime, *, downstream: bool) -> ReplayPlan:
    """Return the changes that the replay of one execution makes in its flow; refuse if the flow was cancelled."""
    if execution.flow is None or not execution.state.is_terminal:
        return ReplayPlan()
    flow = (await tx.flows.lock(None, [execution.flow]))[execution.flow]
    is_root = execution.flow_id is None
    check_can_replay(flow, execution.id, is_root=is_root)
    if is_root:
        # The flow is open again, because the root may submit more children.
        return ReplayPlan(replace(flow, sealed=False, finished=None, ended_at=None, changed_at=now))
    return await plan_replays(tx, flow, [execution], [], now, downstream=downstream)


async def plan_replays(
    tx: Transaction,
    flow: FlowRecord,
    executions: Sequence[Execution],
    left_behind: Sequence[EdgeGroup],
    now: datetime,
    *,
    downstream: bool = True,
) -> ReplayPlan:
    """Return the changes that the replays of these members make in their locked flow.

    Members that earlier replays left behind are brought back too.
    """
    reopening = Reopening(downstream)
    unstarted = [execution.id for execution in executions if execution.started_at is None]
    groups = await _dependencies(tx, unstarted)
    inbound = await _inbound(tx, unstarted)
    for execution in executions:
        reopening.replay(execution.id, groups.get(execution.id), inbound.get(execution.id, ()))
    for group in left_behind:
        reopening.revive(group)
    await _add_siblings(tx, reopening)
    await _reopen(tx, flow, reopening)
    blocked = await _lock_waiting(tx, reopening)
    bad = sum(counts_as_bad(execution.state, execution.cancelled_by) for execution in executions)
    flow = replace(
        flow,
        open_members=flow.open_members + len(executions) + len(reopening.revived),
        ended_badly=flow.ended_badly - bad,
        finished=None,
        ended_at=None,
        changed_at=now,
        was_replayed=True,
    )
    return ReplayPlan(flow, reopening, blocked)


async def write_plan(tx: Transaction, plan: ReplayPlan, now: datetime) -> None:
    """Write a plan, except for the replayed and revived members. The caller has locked the flow."""
    edges, groups = list(plan.reopening.edges.values()), plan.reopening.changed_groups()
    for start in range(0, len(edges), BATCH):
        await tx.edges.put(edges[start : start + BATCH])
    for start in range(0, len(groups), BATCH):
        await tx.edges.put_groups(groups[start : start + BATCH])
    for start in range(0, len(plan.blocked), BATCH):
        await store(tx, [_block(execution, now) for execution in plan.blocked[start : start + BATCH]])
    if plan.flow is not None:
        await tx.flows.put([plan.flow])


def check_can_replay(flow: FlowRecord, id_: UUID, *, is_root: bool = False) -> None:
    """Refuse a replay in a cancelled flow. A root may be replayed if the flow was cancelled with `flow_only`."""
    if flow.is_frozen if is_root else flow.cancel is not None:
        # A root could start no children in the cancelled flow, so it would only fail again.
        message = f"flow {flow.id} was cancelled, so its executions cannot be replayed; submit it again"
        raise Refused("flow_already_terminal", message, flow_id=flow.id, execution_id=id_)


async def _dependencies(tx: Transaction, ids: Sequence[UUID]) -> dict[UUID, EdgeGroup]:
    groups = await tx.edges.groups_of(ids) if ids else []
    return {group.downstream_id: group for group in groups if group.seq == DEPENDENCIES}


async def _inbound(tx: Transaction, ids: Sequence[UUID]) -> dict[UUID, list[StoredEdge]]:
    inbound: dict[UUID, list[StoredEdge]] = {}
    for edge, _ in await tx.edges.into(ids) if ids else ():
        inbound.setdefault(edge.downstream_id, []).append(edge)
    return inbound


async def _reopen(tx: Transaction, flow: FlowRecord, reopening: Reopening) -> None:
    """Open edges and bring members back until nothing changes."""
    rounds = 0
    edges_from: Mapping[UUID, list[EdgeContext]] = {}
    while frontier := reopening.take_frontier():
        if rounds == _MAX_ROUNDS:
            # In a long chain, reading all edges once is cheaper than one read per link.
            edges_from = _by_upstream(await tx.edges.all_within(flow.id))
        if rounds < _MAX_ROUNDS:
            reopening.add_edges(await tx.edges.all_from(frontier))
        else:
            reopening.add_edges(context for id_ in frontier for context in edges_from.get(id_, ()))
        await _add_siblings(tx, reopening)
        rounds += 1


async def _add_siblings(tx: Transaction, reopening: Reopening) -> None:
    if not (stuck := reopening.take_stuck()):
        return
    siblings = await tx.edges.given_up_for(stuck)
    unstarted = [sibling.id for _, sibling in siblings if not sibling.started]
    reopening.add_siblings(stuck, siblings, (await _dependencies(tx, unstarted)).values())


def _by_upstream(contexts: Sequence[EdgeContext]) -> dict[UUID, list[EdgeContext]]:
    edges_from: dict[UUID, list[EdgeContext]] = {}
    for context in contexts:
        edges_from.setdefault(context.edge.upstream_id, []).append(context)
    return edges_from


async def _lock_waiting(tx: Transaction, reopening: Reopening) -> tuple[Execution, ...]:
    """Lock the members that have not ended, and return those that must wait again.

    A worker may have claimed such a member since its edges were read. Then its edges stay as they are.
    """
    waiting = reopening.waiting
    locked = await tx.executions.lock(None, waiting) if waiting else {}
    for id_, execution in locked.items():
        if execution.started_at is not None:
            reopening.take_out(id_)
    return tuple(execution for id_, execution in locked.items() if reopening.must_wait(id_))


def _block(execution: Execution, now: datetime) -> Decision[None]:
    """Make a member wait for its dependencies again. A member that an operator holds stays held."""
    if execution.state not in BLOCK.sources:
        return Decision(None, execution)
    return make_decision(None, execution, apply_transition(execution, BLOCK, now), BLOCK)
