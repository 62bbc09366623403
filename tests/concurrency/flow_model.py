"""A model of flows without a database. It derives the expected state of a flow from the outcomes of its members.

The outcome of an ended member sets the states of its outgoing edges. These edges set the state of the group that they
belong to. The group decides whether its member may start, must be skipped or keeps waiting. Everything except the order
of events follows from the outcomes. A test can therefore check a picture, which is a copy of a flow's rows, at any
time.

A replay undoes the outcome of a member for each downstream member that has not started, and brings back the members
that were skipped because of that outcome. The state of an edge then depends on earlier events. The model therefore also
compares each edge with its state in the previous picture.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

TERMINAL = frozenset({"completed", "failed", "cancelled", "expired", "skipped"})
BAD = frozenset({"failed", "cancelled", "expired"})
FAILED = frozenset({"failed", "expired"})
TAKEN = {
    "on_success": frozenset({"completed"}),
    "on_failure": frozenset({"failed", "expired"}),
    "on_failure_or_skip": frozenset({"failed", "expired"}),
    "on_completion": TERMINAL,
}
SIBLING = "flow_sibling"


@dataclass(frozen=True)
class MemberPicture:
    """A member: its state, whether it has ever started, and the source of its cancellation.

    `after_failure` is true if the member was skipped because of a failure, and `given_up` if it was cancelled because
    the group of a downstream member became impossible. `submitted_again` is true for a child if its parent completed
    after a replay.
    """

    id: str
    state: str
    blocking_reason: str
    started: bool
    cancelled_by: str | None
    generation: int = 0
    after_failure: bool = False
    given_up: bool = False
    submitted_again: bool = False

    @property
    def passes_failure_on(self) -> bool:
        return self.state in FAILED or self.after_failure

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
    """An edge and its recorded state."""

    upstream: str
    downstream: str
    seq: int
    kind: str
    state: str


@dataclass(frozen=True)
class GroupPicture:
    """A group of incoming edges of a member, with its recorded state and counters."""

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
    """A flow at one moment.

    `frozen` is true after a cancellation has disabled the edges. `counted` holds two counters of the flow's row: the
    members that have not ended, and those that failed, expired or were cancelled.
    """

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
        edges_by_group: dict[tuple[str, int], list[EdgePicture]] = defaultdict(list)
        for edge in self.edges:
            edges_by_group[edge.downstream, edge.seq].append(edge)
        return edges_by_group


def edge_state(kind: str, upstream: MemberPicture) -> str:
    """Return the expected state of an edge of this kind from this upstream member."""
    if upstream.state not in TERMINAL:
        return "open"
    is_failure = kind == "on_failure_or_skip" and upstream.after_failure
    return "satisfied" if is_failure or upstream.state in TAKEN[kind] else "impossible"


def group_state(join: str, k: int | None, states: list[str]) -> str:
    """Return the expected state of a group whose edges are in these states."""
    needed = {"all_of": len(states), "any_of": 1, "quorum": k or 1}[join]
    if states.count("satisfied") >= needed:
        return "fired"
    return "impossible" if len(states) - states.count("impossible") < needed else "open"


def find_problems(flow: FlowPicture) -> list[str]:
    """Return all contradictions between the picture and the outcomes of the members."""
    return [*_edge_problems(flow), *_group_problems(flow), *_member_problems(flow), *_flow_problems(flow)]


def flow_outcome(flow: FlowPicture) -> str:
    """Return the expected outcome of a flow whose members have all ended.

    The flow has failed if a member failed, expired or was cancelled and no downstream member handled that outcome, or
    if a member is still skipped because of a failure that a replay repaired.
    """
    outgoing: dict[str, list[EdgePicture]] = defaultdict(list)
    for edge in flow.edges:
        outgoing[edge.upstream].append(edge)
    bad = [member for member in flow.members.values() if member.state in BAD and not member.submitted_again]
    alone = [member for member in bad if not _is_handled(flow, member, outgoing[member.id])]
    return "failed" if alone or left_behind(flow) else "completed"


def left_behind(flow: FlowPicture) -> set[str]:
    """Return the members that are still skipped although a replay repaired the failure."""
    into = flow.edges_into()
    behind = set()
    for (id_, seq), group in flow.groups.items():
        edges = into[id_, seq]
        states = ["open" if flow.members[edge.upstream].given_up else edge.state for edge in edges]
        can_fire = group_state(group.join, group.k, states) != "impossible"
        was_replayed = any(flow.members[edge.upstream].replayed for edge in edges)
        if seq == 0 and group.state == "impossible" and flow.members[id_].state == "skipped":
            behind |= {id_} if can_fire and was_replayed else set()
    return behind


@dataclass(frozen=True)
class Replays:
    """The members that a call replays. With `downstream`, it also brings back skipped members.

    `revived` are members that earlier replays left behind and that the call brings back.
    """

    replayed: frozenset[str] = frozenset()
    revived: frozenset[str] = frozenset()
    downstream: bool = True

    def opened_edges(self, before: FlowPicture, running: frozenset[str]) -> set[EdgePicture]:
        """Return the edges that open again if these members run again."""
        return {
            edge
            for edge in before.edges
            if edge.seq == 0
            and not before.members[edge.downstream].started
            and (edge.upstream in running or (edge.downstream in self.replayed and edge.state == "impossible"))
        }

    def running(self, before: FlowPicture) -> frozenset[str]:
        """Return all members that run again."""
        running = self.replayed
        into = before.edges_into()
        while self.downstream:
            opened = self.opened_edges(before, running)
            back: set[str] = set()
            for id_ in ({edge.downstream for edge in opened} | self.revived) - running:
                if before.members[id_].state == "skipped":
                    back |= _brought_back(before, before.groups[id_, 0], into, opened, running)
            if not back:
                break
            running |= back
        return running


def _brought_back(
    before: FlowPicture,
    group: GroupPicture,
    into: Mapping[tuple[str, int], list[EdgePicture]],
    opened: set[EdgePicture],
    running: frozenset[str],
) -> set[str]:
    """Return a skipped member if its group can fire, or the cancelled members with which it can fire."""

    def can_fire(group: GroupPicture, helpers: set[str]) -> bool:
        edges = into[group.member, 0]
        states = ["open" if edge in opened or edge.upstream in helpers else edge.state for edge in edges]
        return group_state(group.join, group.k, states) != "impossible"

    if can_fire(group, set()):
        return {group.member}
    if group.siblings != "cancel_remaining":
        return set()
    helpers = {edge.upstream for edge in into[group.member, 0] if edge.state == "impossible"} - running
    helpers = {id_ for id_ in helpers if before.members[id_].given_up}
    helpers = {
        id_
        for id_ in helpers
        if before.members[id_].started or (id_, 0) not in before.groups or can_fire(before.groups[id_, 0], set())
    }
    return helpers if can_fire(group, helpers) else set()


NO_REPLAYS = Replays()


def find_step_problems(before: FlowPicture, after: FlowPicture, replays: Replays = NO_REPLAYS) -> Iterator[str]:
    """Yield the errors in the changes that one call made between two pictures."""
    into, running = after.edges_into(), replays.running(before)
    for id_, now in after.members.items():
        was, group = before.members.get(id_), after.groups.get((id_, 0))
        if group is None or (was is not None and was.ended):
            continue
        verdict = group_state(group.join, group.k, [edge.state for edge in into[id_, 0]])
        if now.started and not (was is not None and was.started) and verdict != "fired":
            yield f"{now} has started although its edges are {verdict}"
        if now.state == "skipped" and verdict != "impossible":
            yield f"{now} was skipped although its edges are {verdict}"
    for id_, was in before.members.items():
        now = after.members[id_]
        if was.ended and now != was and id_ not in running:
            yield f"{was} became {now}"
        if id_ in running and (now.ended or now.generation != was.generation + 1):
            yield f"{was} should run again but became {now}"
    yield from _edge_step_problems(before, after, replays)
    yield from _sibling_problems(before, after)


def _edge_step_problems(before: FlowPicture, after: FlowPicture, replays: Replays) -> Iterator[str]:
    """Yield the edges whose new state is wrong."""
    old = {(edge.upstream, edge.downstream, edge.seq): edge for edge in before.edges}
    opened = replays.opened_edges(before, replays.running(before))
    for edge in after.edges:
        was = old.get((edge.upstream, edge.downstream, edge.seq))
        expected = "open" if was in opened else _next_state(before, after, edge, was.state if was else None)
        if edge.state != expected:
            yield f"{edge} was {was and was.state} and should be {expected}; replays were {replays}"


def _next_state(before: FlowPicture, after: FlowPicture, edge: EdgePicture, was: str | None) -> str:
    """Return the expected state of an edge after the call, if no replay opened it.

    A resolved edge stays resolved. If the upstream member ended before the edge was created, its outcome counts only at
    that creation.
    """
    upstream = before.members.get(edge.upstream)
    if was is None:
        return edge_state(edge.kind, after.members[edge.upstream])
    if was == "open":
        is_news = upstream is not None and not upstream.ended
        return edge_state(edge.kind, after.members[edge.upstream]) if is_news else "open"
    return was


def find_hanging_members(flow: FlowPicture) -> set[str]:
    """Return the members that are blocked without a legitimate cause.

    A replayed member may wait for an upstream member that has already ended. It stays blocked until that upstream
    member is replayed too. This is a legitimate cause for the replayed member and for all members that wait for it.
    """
    blocked = {member.id for member in flow.members.values() if member.state == "blocked"}
    waits = [edge for edge in flow.edges if edge.state == "open" and edge.downstream in blocked]
    stuck: set[str] = set()
    while True:
        blocked_by_stuck = {
            edge.downstream for edge in waits if flow.members[edge.upstream].ended or edge.upstream in stuck
        }
        if blocked_by_stuck == stuck:
            return blocked - stuck
        stuck = blocked_by_stuck


def _sibling_problems(before: FlowPicture, after: FlowPicture) -> Iterator[str]:
    """Yield an error for each sibling that was cancelled by mistake or that should have been cancelled."""
    closing = {
        key
        for key, group in after.groups.items()
        if group.siblings == "cancel_remaining"
        and group.state in ("fired", "impossible")
        and _is_newly_decided(before, group)
    }
    into = {edge.upstream for edge in after.edges if (edge.downstream, edge.seq) in closing}
    for member in into:
        was, now = before.members.get(member), after.members[member]
        if was is None or was.ended:
            continue
        if not now.ended and not _is_needed(before, member, closing):
            yield f"{member} is no longer needed but was not cancelled"
    for member, now in after.members.items():
        was = before.members.get(member)
        if now.cancelled_by == SIBLING and was is not None and not was.ended:
            if member not in into:
                yield f"{member} was cancelled as a sibling without a deciding group"
            if _is_needed(after, member, set()):
                yield f"{member} was cancelled although another group needs it"


def _is_newly_decided(before: FlowPicture, group: GroupPicture) -> bool:
    """Return True if the group changed its state or gained an edge in this step before its member ended."""
    was, member = before.groups.get((group.member, group.seq)), before.members.get(group.member)
    if member is not None and member.ended:
        return False
    return was is None or (was.state, was.n) != (group.state, group.n)


def _is_needed(flow: FlowPicture, member: str, but: set[tuple[str, int]]) -> bool:
    """Return True if this member has an edge into an open group of a downstream member that has not ended. Ignore the
    groups in `but`.
    """
    keys = {(edge.downstream, edge.seq) for edge in flow.edges if edge.upstream == member} - but
    return any(flow.groups[key].state == "open" and not flow.members[key[0]].ended for key in keys)


def _edge_problems(flow: FlowPicture) -> Iterator[str]:
    for edge in flow.edges:
        upstream, downstream = flow.members.get(edge.upstream), flow.members.get(edge.downstream)
        if upstream is None or downstream is None or upstream.replayed or downstream.replayed:
            continue
        expected = edge_state(edge.kind, upstream)
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
        if member is None or member.ended or group.draft or _is_ignored(member, group):
            continue
        if flow.frozen if group.seq == 0 else group.state == "closed":
            continue  # A cancelled flow no longer updates groups, nor does a closed wait for children.
        if group.state != group_state(group.join, group.k, states):
            yield f"{group} should be {group_state(group.join, group.k, states)}: {states}"
    for key in into:
        if key not in flow.groups:
            yield f"edges into {key} without a group"


def _is_ignored(member: MemberPicture, group: GroupPicture) -> bool:
    """Return True for a replayed member that gained an edge after it had ended.

    Such an edge is recorded but blocks nothing.
    """
    return member.replayed and member.started and group.state == "closed"


def _member_problems(flow: FlowPicture) -> Iterator[str]:
    into = flow.edges_into()
    for member in flow.members.values():
        group = flow.groups.get((member.id, 0))
        if not member.ended and member.cancelled_by is not None:
            yield f"{member} is alive but was cancelled"
        if member.waits and member.started and not _has_open_wait(flow, member):
            yield f"{member} waits for children but has no open wait"
        if group is None or _is_ignored(member, group):
            continue
        verdict = group_state(group.join, group.k, [edge.state for edge in into[member.id, 0]])
        yield from _skip_problems(flow, member, into[member.id, 0])
        if member.ended:
            continue  # Edges added after a member has ended have no effect on it.
        if member.started and verdict != "fired":
            yield f"{member} has started although its edges are {verdict}"
        if flow.frozen or group.draft:
            continue
        if verdict == "impossible":
            yield f"{member} can never start but was not skipped"
        if member.state != "blocked" if verdict == "open" else member.waits and not member.started:
            yield f"{member} is {member.state} although its edges are {verdict}"


def _skip_problems(flow: FlowPicture, member: MemberPicture, edges: list[EdgePicture]) -> Iterator[str]:
    """Yield an error if it is wrong whether a failure caused the skip. With mixed causes, either may be right."""
    lost = [flow.members[edge.upstream] for edge in edges if edge.state == "impossible"]
    if member.state != "skipped" or flow.frozen or any(flow.members[edge.upstream].replayed for edge in edges):
        return
    causes = {upstream.passes_failure_on for upstream in lost}
    if member.after_failure not in causes:
        yield f"{member} was skipped because of {lost}"


def _has_open_wait(flow: FlowPicture, member: MemberPicture) -> bool:
    return any(id_ == member.id and seq > 0 and group.state == "open" for (id_, seq), group in flow.groups.items())


def _flow_problems(flow: FlowPicture) -> Iterator[str]:
    ended = bool(flow.members) and all(member.ended for member in flow.members.values())
    bad = [item for item in flow.members.values() if item.state in BAD and item.cancelled_by != SIBLING]
    counts = sum(not member.ended for member in flow.members.values()), len(bad)
    if flow.counted not in (None, counts):
        yield f"the flow counts {flow.counted} (members not ended, members ended badly); expected {counts}"
    if ended and flow.sealed and not flow.cancelled and flow.finished != flow_outcome(flow):
        yield f"the flow is {flow.finished} and should be {flow_outcome(flow)}"
    if flow.finished is not None and flow.members and not ended:
        yield f"the flow has {flow.finished}, although some members have not ended"


def _is_handled(flow: FlowPicture, member: MemberPicture, outgoing: Iterable[EdgePicture]) -> bool:
    if member.cancelled_by == SIBLING:
        return True
    for edge in outgoing:
        if edge_state(edge.kind, member) == "satisfied":
            return True
        group = flow.groups[edge.downstream, edge.seq]
        if group.join != "all_of" and group.state == "fired":
            return True
    return False
