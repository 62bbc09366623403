"""`flowfabric flows`: the flows of a namespace, or one of them drawn."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from flowfabric.cli.documents import document, plain
from flowfabric.cli.drawing import draw
from flowfabric.cli.opening import looking
from flowfabric.cli.reading import tags_of
from flowfabric.cli.saying import age, count_of, hint, moment, on_screen, say_lines
from flowfabric.cli.screen import Screen
from flowfabric.cli.tables import Column, facts, table
from flowfabric.core import limits
from flowfabric.core.errors import NotFound
from flowfabric.engine import Engine, FlowDescription, FlowSummary, State, Summary

_COLUMNS = (
    Column("ID"), Column("STATE"), Column("NAME", 8), Column("AGE", right=True), Column("MEMBERS", 12, spare=True),
)  # fmt: skip
_MOST_DRAWN = 500


async def show_flows(arguments: argparse.Namespace) -> None:
    """Prints one page of flows, or draws the one that is named."""
    async with looking(arguments) as engine:
        if arguments.id is not None:
            await _show(engine, arguments)
            return
        page = await engine.flows.list(
            state=arguments.state, name=arguments.name, tags=tags_of(arguments.tag) or None, limit=arguments.limit,
            cursor=arguments.cursor,
        )  # fmt: skip
        now = engine.now()
    if arguments.json:
        say_lines(document(flow) for flow in page.items)
    elif page.items:
        say_lines(flows_table(page.items, now, on_screen()))
    else:
        hint("no flows match")
    if page.next_cursor is not None:
        hint(f"more: --cursor {page.next_cursor}")


def flows_table(flows: Sequence[FlowSummary], now: datetime, screen: Screen) -> list[str]:
    """Flows as people see them."""
    rows = [(flow.id, flow.state, flow.name, age(flow.created_at, now), _counts(flow)) for flow in flows]
    return table(_COLUMNS, rows, screen)


def drawn_flow(flow: FlowDescription, members: Sequence[Summary], screen: Screen) -> list[str]:
    """A flow and its graph as people see them."""
    told = facts(
        [
            ("flow", flow.id), ("name", flow.name), ("state", flow.state), ("members", _counts(flow)),
            ("tags", ", ".join(f"{key}={value}" for key, value in sorted(flow.tags.items()))),
            ("created", moment(flow.created_at)), ("ended", moment(flow.ended_at)),
            ("cancelled", flow.cancelled_by and f"by {flow.cancelled_by} ({flow.cancel_reason or 'no reason given'})"),
            ("sealed", "" if flow.sealed else "no, more may be added"),
        ],
        screen,
    )  # fmt: skip
    shown = members[:_MOST_DRAWN]
    lines = [*told, "", *draw(shown, flow.edges, flow.groups, screen)]
    if len(members) > len(shown):
        lines.append(f"{screen.ellipsis} and {len(members) - len(shown)} more members, which --json shows")
    if flow.is_cut:
        lines.append("the graph is too large to be shown whole: edges are missing here")
    return lines


async def _show(engine: Engine, arguments: argparse.Namespace) -> None:
    flow = await engine.flows.describe(arguments.id)
    members = await _members(engine, flow)
    if arguments.json:
        print(document({**plain(flow), "members": members}))
    else:
        say_lines(drawn_flow(flow, members, on_screen()))


async def _members(engine: Engine, flow: FlowDescription) -> list[Summary]:
    """All members, each after those with an earlier id, and the root of an implicit flow."""
    found: list[Summary] = []
    if flow.implicit:
        found += await _root(engine, flow.id)
    cursor: str | None = None
    while True:
        page = await engine.flows.members(flow.id, limit=limits.BATCH, cursor=cursor)
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            return found


async def _root(engine: Engine, id_: UUID) -> list[Summary]:
    try:
        return [await engine.executions.describe(id_)]
    except NotFound:
        return []


def _counts(flow: FlowSummary) -> str:
    parts = ", ".join(f"{flow.counts[state]} {state}" for state in State if flow.counts.get(state))
    return parts or count_of(0, "member")
