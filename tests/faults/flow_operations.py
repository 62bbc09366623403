"""The operations on flows and children, with the state that each operation needs."""

from __future__ import annotations

from dataclasses import dataclass
from unittest.mock import patch
from uuid import UUID

from flowfabric.engine import Child, ChildSubmission, Edge, EdgeKind, Engine, Fence, Graph, Submission, any_of
from flowfabric.ops.flows import cancel as cancel_flow
from flowfabric.testing import VirtualClock
from tests import flows, scenarios
from tests.faults.event_operations import EVENTS
from tests.faults.operations import OPERATIONS, STEPS, Act, Arrange, Operation, duty, lease, nothing
from tests.faults.wait_operations import WAITS

LONER = ChildSubmission("loner", Submission(kind="loner", signals=["go"]), detached=True)

# The completion of `a` affects every other member. It fires the group of `race`, which cancels `b`; it makes `next`
# runnable, and it skips `handler` and `last`.
SHAPE: flows.Shape = {
    "a": [], "b": [], "race": ["a", "b"], "next": ["a"], "handler": [Edge("a", EdgeKind.ON_FAILURE)],
    "last": ["handler"],
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A flow with a leased member, or a parent with its child."""

    id: UUID
    fence: Fence
    member: UUID


def graph() -> Graph:
    return flows.drawn(SHAPE, joins={"race": any_of()})


async def racing(engine: Engine, clock: VirtualClock) -> Part:
    flow = await flows.built(engine, SHAPE, joins={"race": any_of()})
    await flow.claim("b")
    return Part(flow.id, (await flow.claim("a")).fence, flow["a"])


async def last_one(engine: Engine, clock: VirtualClock) -> Part:
    flow = await flows.built(engine, {"a": [], "b": ["a"]})
    await flow.complete("a")
    return Part(flow.id, (await flow.claim("b")).fence, flow["b"])


async def all_failed(engine: Engine, clock: VirtualClock) -> Part:
    flow = await flows.built(engine, {"a": [], "b": ["a"], "c": ["b"], "always": [Edge("b", EdgeKind.ON_COMPLETION)]})
    fence = (await flow.claim("a")).fence
    await engine.leases.fail(fence, "broken", failure_class="permanent")
    return Part(flow.id, fence, flow["a"])


async def growing(engine: Engine, clock: VirtualClock) -> UUID:
    flow = await flows.built(engine, {"a": [], "b": [], "c": ["b"]}, seal=False)
    await flow.fail("a")
    return flow.id


async def all_ended(engine: Engine, clock: VirtualClock) -> UUID:
    flow = await flows.built(engine, {"a": []}, seal=False)
    await flow.complete("a")
    return flow.id


async def finished(engine: Engine, clock: VirtualClock) -> Part:
    part = await last_one(engine, clock)
    await engine.leases.complete(part.fence, b"")
    return part


async def long_finished(engine: Engine, clock: VirtualClock) -> None:
    await finished(engine, clock)
    clock.advance("60d")


async def cancelled_in_part(engine: Engine, clock: VirtualClock) -> None:
    """Create a cancelled flow whose members have not been cancelled yet, as if other members had filled the first
    batch.
    """
    flow = await flows.built(engine, {"a": [], "b": [], "c": ["b"]})
    with patch.object(cancel_flow, "MAX_CANCELLED", 0):
        await engine.flows.cancel(flow.id)


async def skipped(engine: Engine, clock: VirtualClock) -> UUID:
    flow = await flows.built(engine, {"a": [], "b": ["a"]})
    await flow.fail("a")
    return flow["b"]


async def parent(engine: Engine, clock: VirtualClock) -> Part:
    held = await scenarios.leased(engine)
    children = await flows.with_children(engine, held, "kid")
    return Part(held.execution_id, held.fence, children["kid"])


async def waited_for(engine: Engine, clock: VirtualClock) -> Part:
    part = await parent(engine, clock)
    await engine.leases.suspend(part.fence, [Child("kid", part.member)], key="kid")
    inner = await engine.leases.claim_execution(part.member, "worker-2")
    return Part(part.id, inner.fence, part.member)


async def joined(engine: Engine, clock: VirtualClock) -> Part:
    part = await parent(engine, clock)
    await engine.leases.wait_children(part.fence, [part.member])
    inner = await engine.leases.claim_execution(part.member, "worker-2")
    return Part(part.id, inner.fence, part.member)


async def asked_to_stop(engine: Engine, clock: VirtualClock) -> UUID:
    held = await scenarios.leased(engine)
    await engine.operator.cancel(held.execution_id, "enough", grace="5s")
    clock.advance("6s")
    return held.execution_id


def op(arrange: Arrange, act: Act) -> Operation:
    return Operation(arrange, act)


FLOWS: dict[str, Operation] = {
    "submit_flow": op(nothing, lambda e, id_: e.flows.submit(graph(), id=id_)),
    "create_flow": op(nothing, lambda e, id_: e.flows.create("etl", id=id_)),
    "add_to_flow": op(growing, lambda e, id_: e.flows.add(id_, "d", "job", after=["b"])),
    "add_to_flow, skipped immediately": op(growing, lambda e, id_: e.flows.add(id_, "d", "job", after=["a"])),
    "add_edge": op(growing, lambda e, id_: e.flows.add_edge(id_, "a", "b", kind=EdgeKind.ON_FAILURE)),
    "add_edge, impossible": op(growing, lambda e, id_: e.flows.add_edge(id_, "a", "b")),
    "seal, finishing": op(all_ended, lambda e, id_: e.flows.seal(id_)),
    "complete a member": op(racing, lambda e, part: e.leases.complete(part.fence, b"out")),
    "complete a member with steps": op(racing, lambda e, part: e.leases.complete(part.fence, b"out", steps=STEPS)),
    "complete the last member": op(last_one, lambda e, part: e.leases.complete(part.fence, b"out")),
    "fail a member": op(racing, lambda e, part: e.leases.fail(part.fence, "broken", failure_class="permanent")),
    "cancel a member": op(racing, lambda e, part: e.operator.cancel(part.member)),
    "cancel_flow": op(racing, lambda e, part: e.flows.cancel(part.id, "enough")),
    "cancel_flow, pending": op(racing, lambda e, part: e.flows.cancel(part.id, "enough", policy="cancel_pending")),
    "cancel_flow, only itself": op(racing, lambda e, part: e.flows.cancel(part.id, "enough", policy="flow_only")),
    "flow cancellation": op(cancelled_in_part, duty("flow_cancellation")),
    "flow retention": op(long_finished, duty("flow_retention")),
    "replay a member": op(finished, lambda e, part: e.operator.replay(part.member, expected_generation=0)),
    "replay a skipped member": op(skipped, lambda e, id_: e.operator.replay(id_, expected_generation=0)),
    "replay a member with its downstream": op(
        all_failed, lambda e, part: e.operator.replay(part.member, expected_generation=0)
    ),
    "replay_flow": op(all_failed, lambda e, part: e.flows.replay(part.id, failed=True)),
    "set_flow_tags": op(growing, lambda e, id_: e.flows.set_tags(id_, {"team.owner": "ada"})),
    "submit_children, one of them detached": op(
        lease, lambda e, found: e.leases.submit_children(found.fence, [LONER, flows.child("kid")], steps=STEPS)
    ),
    "submit_children": op(
        lease, lambda e, found: e.leases.submit_children(found.fence, [flows.child("kid")], steps=STEPS)
    ),
    "wait_children": op(parent, lambda e, part: e.leases.wait_children(part.fence, [part.member], steps=STEPS)),
    "suspend on a child": op(
        parent, lambda e, part: e.leases.suspend(part.fence, [Child("kid", part.member)], key="kid")
    ),
    "complete a child that is waited for": op(waited_for, lambda e, part: e.leases.complete(part.fence, b"out")),
    "complete a child that is joined": op(joined, lambda e, part: e.leases.complete(part.fence, b"out")),
    "cancel_children": op(parent, lambda e, part: e.leases.cancel_children(part.fence, [part.member], "enough")),
    "cancel with children": op(parent, lambda e, part: e.operator.cancel(part.id, children=True)),
    "cancel with grace": op(lease, lambda e, found: e.operator.cancel(found.execution_id, "enough", grace="1h")),
    "cancel whose grace is over": op(asked_to_stop, duty("cancel_grace")),
}
EVERY_OPERATION = OPERATIONS | WAITS | FLOWS | EVENTS
