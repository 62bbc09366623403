"""explain: one sentence, with the facts, about why an execution is not running."""

from __future__ import annotations

from uuid import UUID

from flowfabric.core.executions.explain import Dependencies, ExplainContext, Explanation, Upstream, deciding_group
from flowfabric.core.executions.explain import explain as explain_execution
from flowfabric.core.executions.postpone import NO_SETBACKS
from flowfabric.core.executions.records import Execution
from flowfabric.core.executions.states import State
from flowfabric.core.executions.steps import StepView, view_step
from flowfabric.core.flows.records import StoredEdge
from flowfabric.ops.leases.postpone import read_setbacks
from flowfabric.ops.locks import read_execution
from flowfabric.ops.operation import operation
from flowfabric.ops.waits.read import read_hold_report, read_wait_views
from flowfabric.store.transaction import Transaction

_MAX_WORKERS = 1000
_MAX_OPEN_STEPS = 1000


@operation(read_only=True)
async def explain(tx: Transaction, namespace: str, id_: UUID) -> Explanation:
    """Return why the execution is in its present state, according to the present rows of the store."""
    execution = await read_execution(tx, namespace, id_)
    wait, _ = (None, ()) if execution.is_standalone else await read_wait_views(tx, id_)
    now = await tx.now()
    needs_workers = execution.state is State.WAITING
    may_have_setbacks = execution.state in (State.WAITING, State.DELAYED) and execution.started_at is not None
    requires = await tx.routes.requires(execution)
    context = ExplainContext(
        lane=await tx.lanes.get(namespace, execution.lane),
        requires=requires or (),
        has_route=requires is not None,
        wait=wait,
        now=now,
        dependencies=await _read_dependencies(tx, execution),
        hold_report=await read_hold_report(tx, execution),
        retrying=await _read_retrying(tx, execution),
        setbacks=await read_setbacks(tx, execution) if may_have_setbacks else NO_SETBACKS,
        skipped_signals=await tx.waits.skipped_signals(id_) if wait is not None and execution.signal_seq else 0,
        workers=await tx.workers.page(namespace, execution.lane, now, _MAX_WORKERS) if needs_workers else (),
    )
    return explain_execution(execution, context)


async def _read_retrying(tx: Transaction, execution: Execution) -> tuple[StepView, ...]:
    """Return the steps of the execution that wait for their next try."""
    if execution.started_at is None or execution.state.is_terminal:
        return ()
    steps = [view_step(step) for step in await tx.steps.list_open(execution.id, _MAX_OPEN_STEPS)]
    return tuple(step for step in steps if step.next_try_at is not None)


async def _read_dependencies(tx: Transaction, execution: Execution) -> Dependencies | None:
    """Return the dependencies of a blocked or skipped member."""
    if execution.flow is None or execution.state not in (State.BLOCKED, State.SKIPPED):
        return None
    group = deciding_group(await tx.edges.groups_of([execution.id]))
    flows = await tx.flows.get(None, [execution.flow])
    if group is None or execution.flow not in flows:
        return None
    edges = await tx.edges.into([execution.id], group.seq)
    executions = await tx.executions.get(None, [edge.upstream_id for edge, _ in edges]) if edges else {}
    upstreams = tuple(_upstream(executions[edge.upstream_id], edge) for edge, _ in edges)
    return Dependencies(flows[execution.flow], group, upstreams)


def _upstream(execution: Execution, edge: StoredEdge) -> Upstream:
    return Upstream(execution.id, execution.member_name or str(execution.id), execution.state, edge)
