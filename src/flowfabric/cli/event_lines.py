"""How an event is shown: on one line, folded where that has no room, or as one JSON document for programs."""

from __future__ import annotations

import json
from uuid import UUID

from flowfabric.cli.documents import plain
from flowfabric.cli.screen import Screen
from flowfabric.cli.tables import folded
from flowfabric.core.records import Event


def event_lines(event: Event, screen: Screen, *, of: UUID | None = None) -> list[str]:
    """An event for people. Where all are `of` one execution, they need not be told so each time."""
    return folded(_parts(event, of), screen)


def event_document(event: Event) -> str:
    """What there is to say of the event; fields without a value are left out."""
    return json.dumps({name: value for name, value in plain(event).items() if value is not None})


def _parts(event: Event, of: UUID | None) -> list[str]:
    parts = [event.at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3], f"{event.family}.{event.name}"]
    if event.execution_id is not None and event.execution_id == of:
        parts += _version(event)
    elif event.execution_id is not None:
        parts += [str(event.execution_id), *_version(event), f"{event.kind} on {event.lane}"]
    elif event.flow_id is not None:
        parts.append(f"flow {event.flow_id}")
    elif event.lane:
        parts.append(f"lane {event.lane}")
    if event.worker is not None:
        parts.append(f"by {event.worker.name}")
    if event.principal:
        parts.append(f"by {event.principal}")
    parts += _signal(event)
    if event.reason:
        parts.append(f"({event.reason})")
    return parts


def _version(event: Event) -> list[str]:
    """What is told of a child has none."""
    return [] if event.version is None else [f"v{event.version}"]


def _signal(event: Event) -> list[str]:
    """What came, and from whom."""
    if event.family != "signal" or event.details is None or "source" not in event.details:
        return []
    sender = event.details.get("sender")
    told = f"{event.details['name']} from {event.details['source']}"
    return [told if sender is None else f"{told}, sent by {sender}"]
