"""How an event is shown: one line for people, or one JSON document a line for programs."""

from __future__ import annotations

import argparse
import json
from datetime import datetime
from typing import Any
from uuid import UUID

from flowfabric.core.records import Event, WorkerId
from flowfabric.engine.connecting import Connecting, connect

_FIELDS = (
    "at", "family", "name", "namespace", "lane", "kind", "execution_id", "flow_id", "version", "state", "epoch",
    "generation", "attempt_index", "lease_id", "worker", "ends_lease", "tags", "principal", "reason", "details",
    "cursor",
)  # fmt: skip


def opened(arguments: argparse.Namespace) -> Connecting:
    """The store that the command is about. A look never makes one or changes its schema."""
    return connect(
        arguments.url, namespace=arguments.namespace, schema=arguments.schema, durable=False, migrate=False, pool_size=2
    )


def line(event: Event, *, as_json: bool) -> str:
    """One event on one line."""
    return _document(event) if as_json else _sentence(event)


def _document(event: Event) -> str:
    fields = {name: getattr(event, name) for name in _FIELDS}
    return json.dumps({name: value for name, value in fields.items() if value is not None}, default=_plain)


def _sentence(event: Event) -> str:
    parts = [event.at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3], f"{event.family}.{event.name}"]
    if event.execution_id is not None:
        parts += [str(event.execution_id), *_version(event), f"{event.kind} on {event.lane}"]
    elif event.lane:
        parts.append(f"lane {event.lane}")
    if event.worker is not None:
        parts.append(f"by {event.worker.name}")
    if event.principal:
        parts.append(f"by {event.principal}")
    if event.reason:
        parts.append(f"({event.reason})")
    # What others wrote must not steer the terminal.
    return "".join(letter if letter.isprintable() else "?" for letter in "  ".join(parts))


def _version(event: Event) -> list[str]:
    """What is told of a child has none."""
    return [] if event.version is None else [f"v{event.version}"]


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case UUID():
            return str(value)
        case WorkerId():
            return {"name": value.name, "instance": value.instance}
        case _:
            return dict(value)
