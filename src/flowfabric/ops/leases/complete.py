"""complete: end executions successfully.

```text
COMPLETE ──> standalone_batch     one guarded statement
                 │ linked or busy
                 └──> COMPLETE_LINKED ──> linked_batch   flows locked if free, end, then consequences
                                              │ flow or row busy
                                              └──> waiting_batch   one batch per flow, waits for its lock
                                                       │ still undecided
                                                       └──> locked_single
with steps ──> locked_single
```

A linked execution has a flow, children or waits. Its flow row is locked first. Then one statement ends the executions,
and the consequences in all of these flows are written together. Processes that end members of one flow need the same
lock. So the requests for one flow wait in a separate batch. `Context.linked` remembers the leases whose completion
starts at COMPLETE_LINKED.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

from flowfabric.core.executions.attempts import decide_complete
from flowfabric.core.executions.outcomes import Ended
from flowfabric.core.executions.requests import Completion
from flowfabric.core.executions.states import State
from flowfabric.core.flows.records import FlowRecord, MemberEnd
from flowfabric.core.ids import placement_key
from flowfabric.ops.flows.resolve import resolve
from flowfabric.ops.leases.release import give_up_lease
from flowfabric.ops.operation import BatchOperation
from flowfabric.ops.waits.child_signals import signal_waiting
from flowfabric.store.rows import matched_ids, to_datetime, to_uuid
from flowfabric.store.session import Row
from flowfabric.store.transaction import Transaction


class Complete(BatchOperation[Completion, Ended]):
    """Complete standalone executions by one statement."""

    name = "complete"
    batch_path = "standalone_batch"

    def key(self, request: Completion) -> int:
        return request.fence.execution_id.int

    async def run_batch(self, tx: Transaction, namespace: str, requests: Sequence[Completion]) -> list[Ended | None]:
        """Complete each standalone execution that the request's fence owns and whose row is not locked."""
        without_steps = [request for request in requests if not request.steps]
        ids = await complete_if_owned(tx, namespace, without_steps) if without_steps else set()
        return [
            Ended(State.COMPLETED) if request.fence.execution_id in ids and not request.steps else None
            for request in requests
        ]

    async def run_one(self, tx: Transaction, namespace: str, request: Completion) -> Ended:
        """Complete one execution with its steps, return the outcome of a repeated completion, or raise."""
        return await give_up_lease(tx, namespace, request, decide_complete)

    def is_exclusive(self, request: Completion) -> bool:
        return bool(request.steps)


class CompleteLinked(Complete):
    """Complete linked executions (with flows, children or waits) if neither their row nor their flow is locked."""

    single_statement = False
    batch_path = "linked_batch"
    waits_for_flows = False

    async def run_batch(self, tx: Transaction, namespace: str, requests: Sequence[Completion]) -> list[Ended | None]:
        """Complete each execution that its fence owns and that is not locked, and write what changes in the flows."""
        without_steps = [request for request in requests if not request.steps]
        flows = await tx.flows.lock_of(
            [request.fence.execution_id for request in without_steps], wait=self.waits_for_flows
        )
        flow_ids = {id_: flow.id for id_, flow in flows.items()}
        ends, now = await complete_linked_if_owned(tx, namespace, without_steps, flow_ids)
        if now is not None:
            await _write_consequences(tx, namespace, flows, ends, now)
        ids = {end.id for end in ends}
        return [Ended(State.COMPLETED) if request.fence.execution_id in ids else None for request in requests]


class CompleteWaiting(CompleteLinked):
    """Complete members of one flow. The batch waits until it gets the lock of the flow."""

    batch_path = "waiting_batch"
    waits_for_flows = True

    def partition(self, request: Completion) -> Hashable:
        return placement_key(request.fence.execution_id)


_COLUMNS = ("execution_id", "epoch", "lease_id", "result", "encoding", "digest")
COMPLETE_LINKED = CompleteLinked(fallback=CompleteWaiting())
COMPLETE = Complete(fallback=COMPLETE_LINKED)


async def complete_if_owned(tx: Transaction, namespace: str, completions: Sequence[Completion]) -> set[UUID]:
    """Complete standalone executions by one guarded statement, and return the completed ids."""
    returned = await tx.session.fetch_rows(
        "complete_if_owned",
        _COLUMNS,
        [_values(completion) for completion in completions],
        namespace=namespace,
        now=tx.session.bound_now,
    )
    ids = matched_ids(returned, [completion.fence.execution_id for completion in completions])
    _note_completed(tx, namespace, completions, ids, returned)
    return ids


async def complete_linked_if_owned(
    tx: Transaction, namespace: str, completions: Sequence[Completion], flows: Mapping[UUID, UUID]
) -> tuple[list[MemberEnd], datetime | None]:
    """Complete executions in locked flows by one guarded statement. Return their ends and the time of the ends."""
    values = [(*_values(completion), flows.get(completion.fence.execution_id)) for completion in completions]
    returned = await tx.session.fetch_rows(
        "complete_linked_if_owned", (*_COLUMNS, "flow_id"), values, namespace=namespace, now=tx.session.bound_now
    )
    ends = [_member_end(row) for row in returned]
    _note_completed(tx, namespace, completions, {end.id for end in ends}, returned)
    return ends, to_datetime(returned[0]["ended_at"]) if returned else None


async def _write_consequences(
    tx: Transaction, namespace: str, flows: Mapping[UUID, FlowRecord], ends: Sequence[MemberEnd], now: datetime
) -> None:
    """Write everything that these ends of executions change in their locked flows."""
    members = [end for end in ends if end.id in flows]
    # A child's end also concerns its parent, so all ends of its flow are resolved together.
    resolved_flows = {flows[end.id].id for end in members if end.parent_id is not None or end.is_root}
    free = [end.id for end in members if flows[end.id].id not in resolved_flows]
    passed = await tx.pass_on(namespace, free, now) if free else set()
    entangled = [end for end in members if end.id not in passed]
    if entangled:
        entangled_flows = {flows[end.id].id: flows[end.id] for end in entangled}
        await resolve(tx, entangled_flows, entangled, now, were_active=[end.id for end in entangled])
    others = {end.id: end.state for end in ends if end.id not in flows or end.id in passed}
    if others:
        await tx.waits.end(list(others), now, were_active=True)
        await signal_waiting(tx, others, now)


def _values(completion: Completion) -> tuple[object, ...]:
    """Return the values of `_COLUMNS`."""
    fence = completion.fence
    result, encoding = completion.result, completion.encoding
    return fence.execution_id, fence.epoch, fence.lease_id, result, encoding, completion.digest()


def _note_completed(
    tx: Transaction, namespace: str, completions: Sequence[Completion], ids: set[UUID], returned: Sequence[Row]
) -> None:
    if ids:
        completed = [completion for completion in completions if completion.fence.execution_id in ids]
        tx.hints.note_completed(namespace, completed, to_datetime(returned[0]["ended_at"]))


def _member_end(row: Row) -> MemberEnd:
    flow_id = to_uuid(row["flow_id"])
    return MemberEnd(
        id=to_uuid(row["id"]),
        flow_id=flow_id,
        parent_id=to_uuid(row["parent_id"]),
        is_root=flow_id is None and bool(row["has_children"]),
        state=State.COMPLETED,
        is_bad=False,
        ran=True,
    )
