"""Flows for tests, built from mappings, with methods that bring members to every outcome through the contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from flowfabric.engine import (
    CancelScheduled,
    ChildSubmission,
    Created,
    Edge,
    Engine,
    FlowCancelled,
    FlowCreated,
    Graph,
    Join,
    Lease,
    Submission,
    TimeoutOnly,
)
from flowfabric.testing import VirtualClock
from tests.concurrency.waits import duty

OUTCOMES = ("completed", "failed", "cancelled", "expired")
Shape = Mapping[str, Sequence[str | Edge]]


@dataclass(frozen=True)
class Flow:
    """A stored flow with the ids of its members by name."""

    engine: Engine
    id: UUID
    members: dict[str, UUID] = field(default_factory=dict)

    def __getitem__(self, name: str) -> UUID:
        return self.members[name]

    async def claim(self, name: str, **options: Any) -> Lease:
        """Claim a member and return the lease."""
        return await self.engine.leases.claim_execution(self[name], "worker-1", **options)

    async def complete(self, *names: str) -> None:
        """Claim and complete these members one after the other. The result of each is its name."""
        for name in names:
            lease = await self.claim(name)
            await self.engine.leases.complete(lease.fence, name.encode())

    async def fail(self, *names: str) -> None:
        """Fail these members permanently."""
        for name in names:
            lease = await self.claim(name)
            await self.engine.leases.fail(lease.fence, "broken", failure_class="permanent")

    async def cancel(self, *names: str) -> None:
        """Cancel these members as an operator."""
        for name in names:
            await self.engine.operator.cancel(self[name], "not wanted")

    async def expire(self, name: str, clock: VirtualClock) -> None:
        """Let a member exceed its deadline."""
        lease = await self.claim(name)
        await self.engine.leases.suspend(lease.fence, [], TimeoutOnly(), timeout="1s", on_timeout="expire")
        clock.advance("1s")
        assert await duty("suspension_timeout")(self.engine) == 1

    async def end(self, name: str, outcome: str, clock: VirtualClock) -> None:
        """Bring a member to an outcome."""
        if outcome == "expired":
            await self.expire(name, clock)
        else:
            await {"completed": self.complete, "failed": self.fail, "cancelled": self.cancel}[outcome](name)

    async def member(self, name: str) -> str:
        """Return the state of one member."""
        return (await self.engine.executions.describe(self[name])).state.value

    async def states(self) -> dict[str, str]:
        """Return the state of every member."""
        return {name: await self.member(name) for name in self.members}

    async def state(self) -> str:
        """Return the state of the flow."""
        return str((await self.engine.flows.describe(self.id)).state.value)

    async def revision(self) -> int:
        """Return the revision of the graph."""
        return (await self.engine.flows.describe(self.id)).revision

    async def add(self, name: str, *after: str | Edge, **options: Any) -> UUID:
        """Add a member to the running flow."""
        result = await self.engine.flows.add(self.id, name, "job", after=after, **options)
        self.members[name] = result.execution_id
        return result.execution_id


def drawn(
    shape: Shape,
    *,
    joins: Mapping[str, Join] | None = None,
    name: str = "etl",
    options: Mapping[str, dict[str, Any]] | None = None,
    **settings: Any,
) -> Graph:
    """Return a graph from a mapping of each name to its upstream members."""
    graph = Graph(name, **settings)
    for member, after in shape.items():
        join, more = (joins or {}).get(member), (options or {}).get(member, {})
        graph.add(
            member, more.get("kind", "job"), after=after, join=join, **{k: v for k, v in more.items() if k != "kind"}
        )
    return graph


async def built(engine: Engine, shape: Shape, *, id: UUID | None = None, seal: bool = True, **drawing: Any) -> Flow:
    """Submit a flow of this shape."""
    result = await engine.flows.submit(drawn(shape, **drawing), id=id, seal=seal)
    assert isinstance(result, FlowCreated)
    return Flow(engine, result.flow_id, dict(result.members))


async def created(engine: Engine, name: str = "etl", **options: Any) -> Flow:
    """Create an open flow without members."""
    result = await engine.flows.create(name, **options)
    assert isinstance(result, FlowCreated)
    return Flow(engine, result.flow_id)


def count_cancelled(outcome: object) -> int:
    """Return how many members the cancel of a flow cancelled, and check the ids that it returned."""
    assert isinstance(outcome, FlowCancelled | CancelScheduled)
    assert len(set(outcome.members)) == min(outcome.cancelled, 1_000)
    assert outcome.is_truncated is (outcome.cancelled > 1_000)
    return outcome.cancelled


def count_remaining(outcome: object) -> int:
    """Return how many members the cancel of a flow left to the reconcilers."""
    assert isinstance(outcome, CancelScheduled)
    assert count_cancelled(outcome) == 1_000
    return outcome.remaining


async def flow_events(store: Any, flow_id: UUID) -> list[str]:
    """Return the names of the flow's own events, in order."""
    rows = await store.query("SELECT flow_id, name FROM ff.event WHERE family = 'flow' ORDER BY id")
    return [row["name"] for row in rows if str(row["flow_id"]) == str(flow_id)]


async def claimable(engine: Engine, limit: int = 100) -> set[UUID]:
    """Claim all available executions and return them. They stay leased."""
    return {lease.execution_id for lease in await engine.leases.claim(["default"], "worker-9", limit=limit)}


def child(key: str, kind: str = "job", payload: bytes = b"", **options: Any) -> ChildSubmission:
    """Return a submission of a child under this key."""
    return ChildSubmission(key, Submission(kind=kind, payload=payload, **options))


async def with_children(engine: Engine, lease: Lease, *keys: str) -> dict[str, UUID]:
    """Submit children of the leased execution and return their ids by key."""
    results = await engine.leases.submit_children(lease.fence, [child(key) for key in keys])
    assert all(isinstance(result, Created) for result in results)
    return {key: result.id for key, result in zip(keys, results, strict=True)}


async def ended(engine: Engine, id_: UUID, outcome: str = "completed", result: bytes = b"out") -> None:
    """Bring any execution to an outcome."""
    if outcome == "cancelled":
        await engine.operator.cancel(id_, "not wanted")
        return
    lease = await engine.leases.claim_execution(id_, "worker-2")
    if outcome == "completed":
        await engine.leases.complete(lease.fence, result)
    else:
        await engine.leases.fail(lease.fence, "broken", failure_class="permanent")
