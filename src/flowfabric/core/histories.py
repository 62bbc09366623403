"""The history of an execution as people read it: its own events, and among them when its children were submitted and
how they ended. Children have no events at their parent, so these are told from their rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from flowfabric.core.records import Event
from flowfabric.core.views import Summary

CHILD = "child"


def with_children(events: Iterable[Event], children: Iterable[Summary]) -> list[Event]:
    """All of them in the order of time; at the same time those of the execution itself come first, and ends last."""
    told = [event for child in children for event in _told(child)]
    return sorted([*events, *told], key=_place)


def _told(child: Summary) -> Iterator[Event]:
    yield Event(
        namespace=child.namespace, family=CHILD, name="submitted", at=child.created_at, lane=child.lane,
        execution_id=child.id, kind=child.kind,
    )  # fmt: skip
    if child.ended_at is not None:
        yield Event(
            namespace=child.namespace, family=CHILD, name=child.state.value, at=child.ended_at, lane=child.lane,
            execution_id=child.id, kind=child.kind, state=child.state,
        )  # fmt: skip


def _place(event: Event) -> tuple[datetime, int]:
    is_own = event.family != CHILD
    return event.at, 0 if is_own else 1 if event.state is None else 2
