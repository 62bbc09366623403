"""A flow as a tree in the terminal. Every member stands once, below the last of those that it comes after; what else it
comes after is said beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from flowfabric.cli.screen import Screen, escaped, width_of
from flowfabric.engine import EdgeGroup, EdgeKind, JoinKind, StoredEdge, Summary

_LEAST_NAME = 12


@dataclass(frozen=True, slots=True)
class _Line:
    """One member: the branches before its name, its name, its state, and what is to be said beside it."""

    branches: str
    name: str
    state: str
    note: str


def draw(
    members: Sequence[Summary], edges: Sequence[StoredEdge], groups: Sequence[EdgeGroup], screen: Screen
) -> list[str]:
    """The lines of the drawing."""
    if not members:
        return []
    lines = _lines(members, edges, groups, screen)
    widest = max(width_of(line.branches) + width_of(line.name) for line in lines)
    states = max(len(line.state) for line in lines)
    room = max(screen.width - states - 2, 1) if screen.width else widest
    return [_drawn(line, min(widest, room), states, screen) for line in lines]


def _drawn(line: _Line, names: int, states: int, screen: Screen) -> str:
    branches = _shortened(line.branches, names - min(width_of(line.name), _LEAST_NAME), screen)
    name = screen.cut(line.name, names - width_of(branches))
    blanks = " " * (names - width_of(branches) - width_of(name))
    start = f"{branches}{name}{blanks}  {screen.paint_word(line.state.ljust(states))}"
    left = None if screen.width is None else screen.width - names - states - 4
    if not line.note or (left is not None and left < 4):
        return start.rstrip()
    return f"{start}  {line.note if left is None else screen.cut(line.note, left)}"


def _shortened(branches: str, room: int, screen: Screen) -> str:
    """The end of branches that are too deep for the screen."""
    if len(branches) <= room:
        return branches
    return screen.ellipsis + branches[len(branches) - max(room - len(screen.ellipsis), 4) :]


def _lines(
    members: Sequence[Summary], edges: Sequence[StoredEdge], groups: Sequence[EdgeGroup], screen: Screen
) -> list[_Line]:
    known = {member.id: member for member in members}
    upstreams = _upstreams(known, edges)
    order = _order(known, upstreams)
    below: dict[UUID | None, list[UUID]] = {}
    for id_ in sorted(known, key=order.__getitem__):
        over = max(upstreams[id_], key=order.__getitem__, default=None)
        below.setdefault(over, []).append(id_)
    joins = {group.downstream_id: group for group in groups if group.seq == 0}
    kinds = {(edge.upstream_id, edge.downstream_id): edge.kind for edge in edges}
    fork, last, bar, mark = ("├─ ", "└─ ", "│  ", "● ") if screen.signs else ("|- ", "`- ", "|  ", "* ")
    found: list[_Line] = []
    stack = [(id_, "", "") for id_ in reversed(below.get(None, []))]
    while stack:
        id_, before, beneath = stack.pop()
        over = max(upstreams[id_], key=order.__getitem__, default=None)
        note = _note(known, id_, over, upstreams[id_], kinds, joins.get(id_))
        found.append(_Line(before + mark, _name(known[id_]), str(known[id_].state), note))
        children = below.get(id_, [])
        branches = [(child, beneath + fork, beneath + bar) for child in children[:-1]]
        branches += [(child, beneath + last, beneath + "   ") for child in children[-1:]]
        stack += reversed(branches)
    return found


def _upstreams(known: Mapping[UUID, Summary], edges: Sequence[StoredEdge]) -> dict[UUID, list[UUID]]:
    """What each member comes after: by its edges, or, for a child, its parent."""
    found: dict[UUID, list[UUID]] = {id_: [] for id_ in known}
    for edge in edges:
        if edge.seq == 0 and edge.upstream_id in known and edge.downstream_id in known:
            found[edge.downstream_id].append(edge.upstream_id)
    for id_, member in known.items():
        if not found[id_] and member.parent_id is not None and member.parent_id in known:
            found[id_].append(member.parent_id)
    return found


def _order(known: Mapping[UUID, Summary], upstreams: Mapping[UUID, Sequence[UUID]]) -> dict[UUID, tuple[int, str]]:
    """How deep each member stands; at the same depth by name."""
    depth: dict[UUID, int] = {}
    left = {id_: len(above) for id_, above in upstreams.items()}
    after: dict[UUID, list[UUID]] = {id_: [] for id_ in known}
    for id_, above in upstreams.items():
        for each in above:
            after[each].append(id_)
    ready = [id_ for id_, number in left.items() if number == 0]
    for id_ in ready:  # It grows while it is walked.
        depth[id_] = 1 + max((depth[each] for each in upstreams[id_]), default=-1)
        for each in after[id_]:
            left[each] -= 1
            if left[each] == 0:
                ready.append(each)
    return {id_: (depth.get(id_, 0), _name(known[id_])) for id_ in known}


def _name(member: Summary) -> str:
    return escaped(member.member_name or f"{member.kind} {member.id}")


def _note(
    known: Mapping[UUID, Summary], id_: UUID, over: UUID | None, above: Sequence[UUID],
    kinds: Mapping[tuple[UUID, UUID], EdgeKind], group: EdgeGroup | None,
) -> str:  # fmt: skip
    """Which join, which other upstreams, and which edges are not of the common kind."""
    parts = []
    if group is not None and group.n > 1:
        join = f"{group.join.k} of {group.n}" if group.join.kind is JoinKind.QUORUM else f"{group.join.kind}"
        parts.append(f"{join} ({group.satisfied}/{group.n})")
    others = [each for each in above if each != over]
    if others:
        parts.append("also after " + ", ".join(_name(known[each]) + _ending(kinds.get((each, id_))) for each in others))
    if over is not None and _ending(kinds.get((over, id_))):
        parts.append(_ending(kinds.get((over, id_))).strip())
    return ", ".join(parts)


def _ending(kind: EdgeKind | None) -> str:
    return "" if kind in (None, EdgeKind.ON_SUCCESS) else f" {kind.value.replace('_', ' ')}"
