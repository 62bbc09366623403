"""Reads of flows: describe, members, list and state. They lock nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from flowfabric.core.executions.views import Summary, summarize
from flowfabric.core.flows.outcomes import FlowDescription, FlowSummary, describe_graph, summarize_flow
from flowfabric.core.flows.records import LIVE, FlowRecord, FlowState
from flowfabric.ops.flows.extend import flow_not_found
from flowfabric.ops.operation import operation
from flowfabric.store.transaction import Transaction

_MAX_EDGES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowListing:
    """Which flows to list. Flows come newest first, with ids from `first` to below `before`."""

    first: UUID
    before: UUID
    limit: int
    state: FlowState | None = None
    name: str | None = None
    tags: Mapping[str, str] | None = None
    created_from: datetime | None = None
    created_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class MemberPage:
    """A page of the members of one flow, in order of their ids."""

    flow_id: UUID
    after: UUID
    limit: int


async def _read_flow(tx: Transaction, namespace: str, flow_id: UUID) -> FlowRecord:
    flows = await tx.flows.get(namespace, [flow_id])
    if flow_id not in flows:
        raise flow_not_found(flow_id)
    return flows[flow_id]


@operation(read_only=True)
async def describe_flow(tx: Transaction, namespace: str, flow_id: UUID) -> FlowDescription:
    """Return the flow with its graph. A graph with more than 100,000 edges is returned only in part."""
    flow = await _read_flow(tx, namespace, flow_id)
    counts = await tx.flows.counts([flow_id])
    edges, groups = await tx.edges.of_flow(flow_id, _MAX_EDGES + 1)
    return describe_graph(flow, counts.get(flow_id, {}), edges, groups, _MAX_EDGES)


@operation(read_only=True)
async def list_members(tx: Transaction, namespace: str, page: MemberPage) -> list[Summary]:
    """Return one page of the members of a flow."""
    await _read_flow(tx, namespace, page.flow_id)
    members = await tx.members.page(page.flow_id, page.after, page.limit)
    return [summarize(execution) for execution in members]


@operation(read_only=True)
async def list_flows(tx: Transaction, namespace: str, listing: FlowListing) -> list[FlowSummary]:
    """Return one page of flows, newest first.

    A filter for an unfinished state uses an index. With any other filter, the query may have to read all flows.
    """
    summaries: list[FlowSummary] = []
    before, only_live = listing.before, listing.state in LIVE
    while len(summaries) < listing.limit:
        flows = await tx.flows.page(namespace, before, listing.limit, only_live=only_live)
        summaries += await _filter_flows(tx, listing, flows)
        if len(flows) < listing.limit or flows[-1].id < listing.first:
            break
        before = flows[-1].id
    return summaries[: listing.limit]


@operation(read_only=True)
async def read_flow_state(tx: Transaction, namespace: str, flow_id: UUID) -> FlowSummary:
    """Return the summary of one flow."""
    flow = await _read_flow(tx, namespace, flow_id)
    return summarize_flow(flow, (await tx.flows.counts([flow_id])).get(flow_id, {}))


async def _filter_flows(tx: Transaction, listing: FlowListing, flows: Sequence[FlowRecord]) -> list[FlowSummary]:
    passing = [flow for flow in flows if _passes(listing, flow)]
    counts = await tx.flows.counts([flow.id for flow in passing]) if passing else {}
    summaries = [summarize_flow(flow, counts.get(flow.id, {})) for flow in passing]
    return [summary for summary in summaries if listing.state in (None, summary.state)]


def _passes(listing: FlowListing, flow: FlowRecord) -> bool:
    if flow.id < listing.first or listing.name not in (None, flow.name):
        return False
    if listing.created_from is not None and flow.created_at < listing.created_from:
        return False
    if listing.created_until is not None and flow.created_at >= listing.created_until:
        return False
    return listing.tags is None or all(flow.tags.get(key) == value for key, value in listing.tags.items())
