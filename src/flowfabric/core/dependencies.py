"""What a blocked or skipped member waits for or came to nothing for, in words and facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from flowfabric.core.flows import DEPENDENCIES, EdgeGroup, EdgeState, Flow, GroupState, StoredEdge
from flowfabric.core.graph import JoinKind
from flowfabric.core.states import State

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Upstream:
    """An upstream or child: its name, its state, and the edge that leads from it."""

    id: UUID
    name: str
    state: State
    edge: StoredEdge


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The group that decides about a member, with those that it hangs on."""

    flow: Flow
    group: EdgeGroup
    upstreams: tuple[Upstream, ...]

    @property
    def is_doomed(self) -> bool:
        """True if the cancellation of the flow has yet to reach the member. Who waits for children has started, and is
        not meant by every policy; the root of an implicit flow is no member of it."""
        flow, group = self.flow, self.group
        if not flow.is_frozen or group.seq == DEPENDENCIES:
            return flow.is_frozen
        return flow.cancels_started and group.downstream_id != flow.id


def tell_blocked(found: Dependencies) -> tuple[str, dict[str, Any]]:
    """Whom the member waits for."""
    facts = _facts(found, EdgeState.OPEN)
    if found.is_doomed:
        return "Its flow was cancelled; it is about to be cancelled too.", facts
    if found.group.draft:
        return "It is a draft; seal it, or its flow, to let it start.", facts
    open_ones = [item for item in found.upstreams if item.edge.state is EdgeState.OPEN]
    who = "its children" if found.group.seq != DEPENDENCIES else "its upstreams"
    return f"It waits for {_needed(found.group)} of {who}: {_listed(open_ones)}.", facts


def tell_skipped(found: Dependencies) -> tuple[str, dict[str, Any]]:
    """Who kept the member from ever starting."""
    lost = [item for item in found.upstreams if item.edge.state is EdgeState.IMPOSSIBLE]
    return f", because what it came after did not end as needed: {_listed(lost)}", _facts(found, EdgeState.IMPOSSIBLE)


def deciding_group(groups: Sequence[EdgeGroup]) -> EdgeGroup | None:
    """The group that a member waits for: the open one, or the dependencies."""
    still_open = [group for group in groups if group.state is GroupState.OPEN]
    return max(still_open or groups, key=lambda group: (group.state is GroupState.OPEN, group.seq), default=None)


def _needed(group: EdgeGroup) -> str:
    needed = group.join.needed(group.n)
    if group.join.kind is JoinKind.ALL_OF:
        return f"{needed - group.satisfied} more" if group.satisfied else "all"
    return f"{needed - group.satisfied} more ({group.join.kind}, {needed} of {group.n})"


def _listed(items: Sequence[Upstream]) -> str:
    shown = ", ".join(f"{item.name!r} is {item.state}" for item in items[:_SHOWN])
    return shown if len(items) <= _SHOWN else f"{shown} and {len(items) - _SHOWN} more"


def _facts(found: Dependencies, state: EdgeState) -> dict[str, Any]:
    waits = {item.name: item.state.value for item in found.upstreams if item.edge.state is state}
    return {
        "flow": found.flow.id,
        "join": found.group.join.kind.value,
        "needed": found.group.join.needed(found.group.n),
        "satisfied": found.group.satisfied,
        "waits_for" if state is EdgeState.OPEN else "lost": waits,
    }
