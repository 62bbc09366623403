"""The reads of flows: describe, members, list, inputs. They lock nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from flowfabric.core.flow_outcomes import FlowDescription, FlowSummary, Input, describe_graph, summarize_flow
from flowfabric.core.flows import LIVE, Flow, FlowState
from flowfabric.core.views import Summary, summarize
from flowfabric.ops.grow_flow import flow_not_found
from flowfabric.store.transaction import Transaction

_MOST_EDGES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowListing:
    """Which flows to list: newest first, those with a smaller id than `before`."""

    namespace: str
    before: UUID
    limit: int
    state: FlowState | None = None
    name: str | None = None
    tags: Mapping[str, str] | None = None
    created_from: datetime | None = None
    created_until: datetime | None = None


async def read_flow(tx: Transaction, namespace: str, flow_id: UUID) -> Flow:
    """The flow as it is, not locked."""
    found = await tx.flows.get(namespace, [flow_id])
    if flow_id not in found:
        raise flow_not_found(flow_id)
    return found[flow_id]


async def describe_flow(tx: Transaction, namespace: str, flow_id: UUID) -> FlowDescription:
    """The flow with its graph, or as much of it as fits."""
    flow = await read_flow(tx, namespace, flow_id)
    counts = await tx.flows.counts([flow_id])
    edges, groups = await tx.flows.edges.of_flow(flow_id, _MOST_EDGES + 1)
    return describe_graph(flow, counts.get(flow_id, {}), edges, groups, _MOST_EDGES)


async def members(tx: Transaction, namespace: str, flow_id: UUID, after: UUID, limit: int) -> list[Summary]:
    """One page of a flow's members, in order of their ids."""
    await read_flow(tx, namespace, flow_id)
    return [summarize(execution) for execution in await tx.flows.members.page(flow_id, after, limit)]


async def list_flows(tx: Transaction, listing: FlowListing) -> list[FlowSummary]:
    """One page of flows, newest first. Those that have not finished are found among themselves; any other filter that
    few flows pass walks the others."""
    found: list[FlowSummary] = []
    before, only_live = listing.before, listing.state in LIVE
    while len(found) < listing.limit:
        flows = await tx.flows.page(listing.namespace, before, listing.limit, only_live=only_live)
        found += await _matching(tx, listing, flows)
        if len(flows) < listing.limit:
            break
        before = flows[-1].id
    return found[: listing.limit]


async def inputs(tx: Transaction, namespace: str, ids: Sequence[UUID]) -> dict[UUID, dict[str, Input]]:
    """What the upstreams of members left for them, by the names of their inputs. Exactly one statement."""
    return await tx.looks.inputs(namespace, ids)


async def flow_state_of(tx: Transaction, namespace: str, flow_id: UUID) -> FlowSummary:
    """The flow at a glance."""
    flow = await read_flow(tx, namespace, flow_id)
    return summarize_flow(flow, (await tx.flows.counts([flow_id])).get(flow_id, {}))


async def _matching(tx: Transaction, listing: FlowListing, flows: Sequence[Flow]) -> list[FlowSummary]:
    kept = [flow for flow in flows if _passes(listing, flow)]
    counts = await tx.flows.counts([flow.id for flow in kept]) if kept else {}
    shown = [summarize_flow(flow, counts.get(flow.id, {})) for flow in kept]
    return [item for item in shown if listing.state in (None, item.state)]


def _passes(listing: FlowListing, flow: Flow) -> bool:
    if listing.name not in (None, flow.name):
        return False
    if listing.created_from is not None and flow.created_at < listing.created_from:
        return False
    if listing.created_until is not None and flow.created_at >= listing.created_until:
        return False
    return listing.tags is None or all(flow.tags.get(key) == value for key, value in listing.tags.items())
