"""What a flow must look like, told from nothing but the ends of its members: a model without a database.

A member that has ended decides its outgoing edges; the edges decide the group that they lead into; the group decides
whether its member may start, must be skipped, or goes on waiting. So everything but the order of things follows from
the ends, and a picture of a flow, taken at any moment, can be checked against it.

A replay takes an end back, and only where nobody has acted on it yet: what an edge is then depends on what happened
before, so edges are also checked from one picture to the next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

TERMINAL = frozenset({"completed", "failed", "cancelled", "expired", "skipped"})
BAD = frozenset({"failed", "cancelled", "expired"})
TAKEN = {
    "on_success": frozenset({"completed"}),
    "on_failure": frozenset({"failed", "expired"}),
    "on_completion": TERMINAL,
}
SIBLING = "flow_sibling"


@dataclass(frozen=True)
class MemberPicture:
    """A member: its state, whether it has ever started, and who cancelled it."""

    id: str
    state: str
    blocking_reason: str
    started: bool
    cancelled_by: str | None
    generation: int = 0

    @property
    def replayed(self) -> bool:
        return self.generation > 0

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL

    @property
    def waits(self) -> bool:
        return self.state == "blocked" and self.blocking_reason == "waiting_for_children"


@dataclass(frozen=True)
class EdgePicture:
    """An edge, and what is recorded of it."""

    upstream: str
    downstream: str
    seq: int
    kind: str
    state: str


@dataclass(frozen=True)
class GroupPicture:
    """The group of a member's edges, and what is recorded of it."""

    member: str
    seq: int
    join: str
    k: int | None
    siblings: str
    state: str
    n: int
    satisfied: int
    impossible: int
    draft: bool


@dataclass(frozen=True)
class FlowPicture:
    """A flow at one moment. Frozen is one whose cancellation has switched its edges off; counted are the members on its
    row that have not ended, and those that ended badly."""

    id: str
    sealed: bool
    frozen: bool
    cancelled: bool
    finished: str | None
    members: Mapping[str, MemberPicture]
    edges: tuple[EdgePicture, ...]
    groups: Mapping[tuple[str, int], GroupPicture]
    counted: tuple[int, int] | None = None

    def edges_into(self) -> Mapping[tuple[str, int], list[EdgePicture]]:
        found: dict[tuple[str, int], list[EdgePicture]] = defaultdict(list)
        for edge in self.edges:
            found[edge.downstream, edge.seq].append(edge)
        return found


def edge_state(kind: str, upstream: str) -> str:
    """What an edge of this kind is when its upstream is in this state."""
    if upstream not in TERMINAL:
        return "open"
    return "satisfied" if upstream in TAKEN[kind] else "impossible"


def group_state(join: str, k: int | None, states: list[str]) -> str:
    """What a group of edges in these states is."""
    needed = {"all_of": len(states), "any_of": 1, "quorum": k or 1}[join]
    if states.count("satisfied") >= needed:
        return "fired"
    return "impossible" if len(states) - states.count("impossible") < needed else "open"


def problems(flow: FlowPicture) -> list[str]:
    """Everything in the picture that contradicts the ends of the members."""
    return [*_edge_problems(flow), *_group_problems(flow), *_member_problems(flow), *_flow_problems(flow)]


def flow_outcome(flow: FlowPicture) -> str:
    """How a flow whose members have all ended must have ended: failed if somebody's bad end was taken up by nobody."""
    outgoing: dict[str, list[EdgePicture]] = defaultdict(list)
    for edge in flow.edges:
        outgoing[edge.upstream].append(edge)
    bad = [item for item in flow.members.values() if item.state in BAD]
    alone = [item for item in bad if not _taken_up(flow, item, outgoing[item.id])]
    return "failed" if alone else "completed"


def step_problems(before: FlowPicture, after: FlowPicture, replayed: str | None = None) -> Iterator[str]:
    """What is wrong with the change from one picture to the next, with one call in between: perhaps a replay."""
    into = after.edges_into()
    for id_, now in after.members.items():
        was, group = before.members.get(id_), after.groups.get((id_, 0))
        if group is None or (was is not None and was.ended):
            continue
        verdict = group_state(group.join, group.k, [edge.state for edge in into[id_, 0]])
        if now.started and not (was is not None and was.started) and verdict != "fired":
            yield f"{now} has started, and its edges are {verdict}"
        if now.state == "skipped" and verdict != "impossible":
            yield f"{now} was skipped, and its edges are {verdict}"
    for id_, was in before.members.items():
        if was.ended and after.members[id_] != was and id_ != replayed:
            yield f"{was} became {after.members[id_]}"
    yield from _edge_step_problems(before, after, replayed)
    yield from _sibling_problems(before, after)


def _edge_step_problems(before: FlowPicture, after: FlowPicture, replayed: str | None) -> Iterator[str]:
    """What is wrong with what became of each edge."""
    old = {(edge.upstream, edge.downstream, edge.seq): edge for edge in before.edges}
    for edge in after.edges:
        was = old.get((edge.upstream, edge.downstream, edge.seq))
        expected = _next_state(before, after, edge, was.state if was else None, replayed)
        if edge.state != expected:
            yield f"{edge} was {was and was.state} and should be {expected}; replayed was {replayed}"


def _next_state(
    before: FlowPicture, after: FlowPicture, edge: EdgePicture, was: str | None, replayed: str | None
) -> str:
    """What an edge must be after the call. Once resolved it stays so, but for two replays: that of its upstream, while
    its downstream has never started, and that of such a downstream, which waits again for what had become impossible.
    An end that was there before counts once, when the edge is made."""
    upstream = before.members.get(edge.upstream)
    if was is None:
        return edge_state(edge.kind, after.members[edge.upstream].state)
    if was == "open":
        is_news = upstream is not None and not upstream.ended
        return edge_state(edge.kind, after.members[edge.upstream].state) if is_news else "open"
    untouched = edge.seq == 0 and not before.members[edge.downstream].started
    opens = edge.upstream == replayed or (edge.downstream == replayed and was == "impossible")
    return "open" if untouched and opens else was


def hanging(flow: FlowPicture) -> set[str]:
    """Members that are blocked and that nobody can be blamed for. Blamed is whoever had ended before one that was
    replayed began to wait for it, which only another replay ends again; and who waits for such a one, and so on."""
    blocked = {member.id for member in flow.members.values() if member.state == "blocked"}
    waits = [edge for edge in flow.edges if edge.state == "open" and edge.downstream in blocked]
    stuck: set[str] = set()
    while True:
        found = {edge.downstream for edge in waits if flow.members[edge.upstream].ended or edge.upstream in stuck}
        if found == stuck:
            return blocked - stuck
        stuck = found


def _sibling_problems(before: FlowPicture, after: FlowPicture) -> Iterator[str]:
    """What is wrong with the siblings that were cancelled, or not."""
    closing = {
        key for key, group in after.groups.items()
        if group.siblings == "cancel_remaining" and group.state in ("fired", "impossible") and _is_news(before, group)
    }  # fmt: skip
    into = {edge.upstream for edge in after.edges if (edge.downstream, edge.seq) in closing}
    for member in into:
        was, now = before.members.get(member), after.members[member]
        if was is None or was.ended:
            continue
        if not now.ended and not _needed(before, member, closing):
            yield f"{member} no longer matters and was not cancelled"
    for member, now in after.members.items():
        was = before.members.get(member)
        if now.cancelled_by == SIBLING and was is not None and not was.ended:
            if member not in into:
                yield f"{member} was cancelled as a sibling of nobody"
            if _needed(after, member, set()):
                yield f"{member} was cancelled, and another group still needs it"


def _is_news(before: FlowPicture, group: GroupPicture) -> bool:
    """True if the group was decided since, or an edge was added to it while its member had not ended."""
    was, member = before.groups.get((group.member, group.seq)), before.members.get(group.member)
    if member is not None and member.ended:
        return False
    return was is None or (was.state, was.n) != (group.state, group.n)


def _needed(flow: FlowPicture, member: str, but: set[tuple[str, int]]) -> bool:
    """True if an open group of a member that has not ended has an edge from this one."""
    keys = {(edge.downstream, edge.seq) for edge in flow.edges if edge.upstream == member} - but
    return any(flow.groups[key].state == "open" and not flow.members[key[0]].ended for key in keys)


def _edge_problems(flow: FlowPicture) -> Iterator[str]:
    for edge in flow.edges:
        upstream, downstream = flow.members.get(edge.upstream), flow.members.get(edge.downstream)
        if upstream is None or downstream is None or upstream.replayed or downstream.replayed:
            continue
        expected = edge_state(edge.kind, upstream.state)
        if edge.state != expected:
            yield f"{edge} should be {expected}: its upstream is {upstream.state}"


def _group_problems(flow: FlowPicture) -> Iterator[str]:
    into = flow.edges_into()
    for key, group in flow.groups.items():
        states = [edge.state for edge in into[key]]
        counted = (len(states), states.count("satisfied"), states.count("impossible"))
        if (group.n, group.satisfied, group.impossible) != counted:
            yield f"{group} has edges {counted}"
        member = flow.members.get(group.member)
        if member is None or member.ended or group.draft or _is_done_with(member, group):
            continue
        if flow.frozen if group.seq == 0 else group.state == "closed":
            continue  # A cancelled flow starts nobody; who was asked to stop waits for no children any more.
        if group.state != group_state(group.join, group.k, states):
            yield f"{group} should be {group_state(group.join, group.k, states)}: {states}"
    for key in into:
        if key not in flow.groups:
            yield f"edges into {key} without a group"


def _is_done_with(member: MemberPicture, group: GroupPicture) -> bool:
    """True of one that runs again and got an edge when it had ended: that edge is recorded, and stops nobody."""
    return member.replayed and member.started and group.state == "closed"


def _member_problems(flow: FlowPicture) -> Iterator[str]:
    into = flow.edges_into()
    for member in flow.members.values():
        group = flow.groups.get((member.id, 0))
        if not member.ended and member.cancelled_by is not None:
            yield f"{member} lives, and was cancelled"
        if member.waits and member.started and not _has_open_wait(flow, member):
            yield f"{member} waits for children, and all of its waits are over"
        if group is None or _is_done_with(member, group):
            continue
        verdict = group_state(group.join, group.k, [edge.state for edge in into[member.id, 0]])
        if member.ended:
            continue  # Edges may have come later, which do nothing.
        if member.started and verdict != "fired":
            yield f"{member} has started, and its edges are {verdict}"
        if flow.frozen or group.draft:
            continue
        if verdict == "impossible":
            yield f"{member} can never start, and was not skipped"
        if member.state != "blocked" if verdict == "open" else member.waits and not member.started:
            yield f"{member} is {member.state}, and its edges are {verdict}"


def _has_open_wait(flow: FlowPicture, member: MemberPicture) -> bool:
    return any(id_ == member.id and seq > 0 and group.state == "open" for (id_, seq), group in flow.groups.items())


def _flow_problems(flow: FlowPicture) -> Iterator[str]:
    ended = bool(flow.members) and all(member.ended for member in flow.members.values())
    bad = [item for item in flow.members.values() if item.state in BAD and item.cancelled_by != SIBLING]
    counts = sum(not member.ended for member in flow.members.values()), len(bad)
    if flow.counted not in (None, counts):
        yield f"the flow counts {flow.counted} members that have not ended, and that ended badly; there are {counts}"
    if ended and flow.sealed and not flow.cancelled and flow.finished != flow_outcome(flow):
        yield f"the flow is {flow.finished} and should be {flow_outcome(flow)}"
    if flow.finished is not None and flow.members and not ended:
        yield f"the flow has {flow.finished}, and members have not ended"


def _taken_up(flow: FlowPicture, member: MemberPicture, outgoing: Iterable[EdgePicture]) -> bool:
    if member.cancelled_by == SIBLING:
        return True
    for edge in outgoing:
        if edge_state(edge.kind, member.state) == "satisfied":
            return True
        group = flow.groups[edge.downstream, edge.seq]
        if group.join != "all_of" and group.state == "fired":
            return True
    return False
