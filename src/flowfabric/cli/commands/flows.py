"""`flowfabric flows`: list the flows of a namespace, or draw one."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from flowfabric.cli.inputs import parse_tags
from flowfabric.cli.output import (
    format_age,
    format_count,
    format_json,
    format_time,
    print_hint,
    print_lines,
    print_next,
    stdout_screen,
    to_json,
)
from flowfabric.cli.targets import find_flow, open_for_reading
from flowfabric.cli.terminal import Column, Screen, display_width, format_facts, format_table
from flowfabric.core.errors import NotFound
from flowfabric.core.validation import MAX_BATCH, escape
from flowfabric.engine import (
    EdgeGroup,
    EdgeKind,
    Engine,
    FlowDescription,
    FlowSummary,
    JoinKind,
    State,
    StoredEdge,
    Summary,
)

_COLUMNS = (
    Column("ID"), Column("STATE"), Column("NAME", 8), Column("AGE", align_right=True),
    Column("MEMBERS", 12, is_optional=True),
)  # fmt: skip
_MIN_NAME_WIDTH = 12
_MAX_DRAWN_MEMBERS = 500


async def show_flows(arguments: argparse.Namespace) -> None:
    """Print one page of flows, or draw the flow with the given id."""
    async with open_for_reading(arguments) as engine:
        if arguments.id is not None:
            await _show_flow(engine, arguments)
            return
        page = await engine.flows.list(
            state=arguments.state,
            name=arguments.name,
            tags=parse_tags(arguments.tag) or None,
            limit=arguments.limit,
            cursor=arguments.cursor,
        )
        now = engine.now()
    if arguments.json:
        print_lines(format_json(flow) for flow in page.items)
    elif page.items:
        print_lines(flows_table(page.items, now, stdout_screen()))
    else:
        print_hint("No flows match.")
    print_next(page.next_cursor)


def flows_table(flows: Sequence[FlowSummary], now: datetime, screen: Screen) -> list[str]:
    """Return the flows as a table."""
    rows = [(flow.id, flow.state, flow.name, format_age(flow.created_at, now), _counts(flow)) for flow in flows]
    return format_table(_COLUMNS, rows, screen)


async def _show_flow(engine: Engine, arguments: argparse.Namespace) -> None:
    flow = await engine.flows.describe(await find_flow(engine, arguments.id))
    members = await _list_members(engine, flow)
    if arguments.json:
        print(format_json({**to_json(flow), "members": members}))
    else:
        print_lines(format_flow(flow, members, stdout_screen()))


async def _list_members(engine: Engine, flow: FlowDescription) -> list[Summary]:
    """Return all members in the order of their ids. For an implicit flow, the root execution comes first."""
    members: list[Summary] = []
    if flow.implicit:
        members += await _find_root(engine, flow.id)
    cursor: str | None = None
    while True:
        page = await engine.flows.members(flow.id, limit=MAX_BATCH, cursor=cursor)
        members += page.items
        cursor = page.next_cursor
        if cursor is None:
            return members


async def _find_root(engine: Engine, id_: UUID) -> list[Summary]:
    try:
        return [await engine.executions.describe(id_)]
    except NotFound:
        return []


def format_flow(flow: FlowDescription, members: Sequence[Summary], screen: Screen) -> list[str]:
    """Return a flow and its graph as lines for people."""
    facts = format_facts(
        [
            ("flow", flow.id),
            ("name", flow.name),
            ("state", flow.state),
            ("members", _counts(flow)),
            ("tags", ", ".join(f"{key}={value}" for key, value in sorted(flow.tags.items()))),
            ("created", format_time(flow.created_at)),
            ("ended", format_time(flow.ended_at)),
            ("cancelled", flow.cancelled_by and f"by {flow.cancelled_by} ({flow.cancel_reason or 'no reason given'})"),
            ("sealed", "" if flow.sealed else "no, members can be added"),
        ],
        screen,
    )
    drawn = members[:_MAX_DRAWN_MEMBERS]
    lines = [*facts, "", *draw_graph(drawn, flow.edges, flow.groups, screen)]
    if len(members) > len(drawn):
        lines.append(f"{screen.ellipsis} and {len(members) - len(drawn)} more members; use --json to see them")
    if flow.is_truncated:
        lines.append("The graph is too large to show all of its edges.")
    return lines


def _counts(flow: FlowSummary) -> str:
    parts = ", ".join(f"{flow.counts[state]} {state}" for state in State if flow.counts.get(state))
    return parts or format_count(0, "member")


# The functions below draw the graph of a flow as a tree. Each member appears once, below its deepest upstream; a note
# names its other upstreams.


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of the drawing, which shows one member."""

    branches: str
    name: str
    state: str
    note: str


def draw_graph(
    members: Sequence[Summary], edges: Sequence[StoredEdge], groups: Sequence[EdgeGroup], screen: Screen
) -> list[str]:
    """Draw the graph as a tree, and return its lines."""
    if not members:
        return []
    lines = _lines(members, edges, groups, screen)
    widest = max(display_width(line.branches) + display_width(line.name) for line in lines)
    states = max(len(line.state) for line in lines)
    available = max(screen.width - states - 2, 1) if screen.width else widest
    return [_draw_line(line, min(widest, available), states, screen) for line in lines]


def _draw_line(line: _Line, names: int, states: int, screen: Screen) -> str:
    branches = _cut_branches(line.branches, names - min(display_width(line.name), _MIN_NAME_WIDTH), screen)
    name = screen.cut(line.name, names - display_width(branches))
    padding = " " * (names - display_width(branches) - display_width(name))
    start = f"{branches}{name}{padding}  {screen.paint_word(line.state.ljust(states))}"
    remaining = None if screen.width is None else screen.width - names - states - 4
    if not line.note or (remaining is not None and remaining < 4):
        return start.rstrip()
    return f"{start}  {line.note if remaining is None else screen.cut(line.note, remaining)}"


def _cut_branches(branches: str, width: int, screen: Screen) -> str:
    """Return the tree branches in front of a member. If they are wider than `width`, return only their right end."""
    if len(branches) <= width:
        return branches
    return screen.ellipsis + branches[len(branches) - max(width - len(screen.ellipsis), 4) :]


def _lines(
    members: Sequence[Summary], edges: Sequence[StoredEdge], groups: Sequence[EdgeGroup], screen: Screen
) -> list[_Line]:
    by_id = {member.id: member for member in members}
    upstreams = _upstreams(by_id, edges)
    order = _order(by_id, upstreams)
    children_of: dict[UUID | None, list[UUID]] = {}
    for id_ in sorted(by_id, key=order.__getitem__):
        parent = max(upstreams[id_], key=order.__getitem__, default=None)
        children_of.setdefault(parent, []).append(id_)
    joins = {group.downstream_id: group for group in groups if group.seq == 0}
    kinds = {(edge.upstream_id, edge.downstream_id): edge.kind for edge in edges}
    fork, last, bar, mark = ("├─ ", "└─ ", "│  ", "● ") if screen.has_unicode else ("|- ", "`- ", "|  ", "* ")
    lines: list[_Line] = []
    stack = [(id_, "", "") for id_ in reversed(children_of.get(None, []))]
    while stack:
        id_, prefix, child_prefix = stack.pop()
        parent = max(upstreams[id_], key=order.__getitem__, default=None)
        note = _note(by_id, id_, parent, upstreams[id_], kinds, joins.get(id_))
        lines.append(_Line(prefix + mark, _name(by_id[id_]), str(by_id[id_].state), note))
        children = children_of.get(id_, [])
        branches = [(child, child_prefix + fork, child_prefix + bar) for child in children[:-1]]
        branches += [(child, child_prefix + last, child_prefix + "   ") for child in children[-1:]]
        stack += reversed(branches)
    return lines


def _upstreams(by_id: Mapping[UUID, Summary], edges: Sequence[StoredEdge]) -> dict[UUID, list[UUID]]:
    """Return the upstreams of each member. A child without edges has its parent as its only upstream."""
    upstreams: dict[UUID, list[UUID]] = {id_: [] for id_ in by_id}
    for edge in edges:
        if edge.seq == 0 and edge.upstream_id in by_id and edge.downstream_id in by_id:
            upstreams[edge.downstream_id].append(edge.upstream_id)
    for id_, member in by_id.items():
        if not upstreams[id_] and member.parent_id is not None and member.parent_id in by_id:
            upstreams[id_].append(member.parent_id)
    return upstreams


def _order(by_id: Mapping[UUID, Summary], upstreams: Mapping[UUID, Sequence[UUID]]) -> dict[UUID, tuple[int, str]]:
    """Return the sort key of each member: its depth, then its name."""
    depth: dict[UUID, int] = {}
    unresolved = {id_: len(above) for id_, above in upstreams.items()}
    downstreams: dict[UUID, list[UUID]] = {id_: [] for id_ in by_id}
    for id_, above in upstreams.items():
        for upstream in above:
            downstreams[upstream].append(id_)
    ready = [id_ for id_, number in unresolved.items() if number == 0]
    for id_ in ready:  # The list grows during the iteration.
        depth[id_] = 1 + max((depth[upstream] for upstream in upstreams[id_]), default=-1)
        for downstream in downstreams[id_]:
            unresolved[downstream] -= 1
            if unresolved[downstream] == 0:
                ready.append(downstream)
    return {id_: (depth.get(id_, 0), _name(by_id[id_])) for id_ in by_id}


def _name(member: Summary) -> str:
    return escape(member.member_name or f"{member.kind} {member.id}")


def _note(
    by_id: Mapping[UUID, Summary],
    id_: UUID,
    parent: UUID | None,
    upstreams: Sequence[UUID],
    kinds: Mapping[tuple[UUID, UUID], EdgeKind],
    group: EdgeGroup | None,
) -> str:
    """Return the note beside a member.

    It shows the member's join, its upstreams other than `parent`, and the kinds of its edges except `on_success`.
    """
    parts = []
    if group is not None and group.n > 1:
        join = f"{group.join.k} of {group.n}" if group.join.kind is JoinKind.QUORUM else f"{group.join.kind}"
        parts.append(f"{join} ({group.satisfied}/{group.n})")
    others = [_name(by_id[other]) + _edge_suffix(kinds.get((other, id_))) for other in upstreams if other != parent]
    if others:
        parts.append("also after " + ", ".join(others))
    if parent is not None and _edge_suffix(kinds.get((parent, id_))):
        parts.append(_edge_suffix(kinds.get((parent, id_))).strip())
    return ", ".join(parts)


def _edge_suffix(kind: EdgeKind | None) -> str:
    return "" if kind in (None, EdgeKind.ON_SUCCESS) else f" {kind.value.replace('_', ' ')}"
