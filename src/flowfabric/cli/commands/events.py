"""`flowfabric events` and `history`: print the events of a namespace or of one execution."""

from __future__ import annotations

import argparse
import json
import sys
from uuid import UUID

from flowfabric.cli.inputs import parse_tags
from flowfabric.cli.output import print_lines, stdout_screen, to_json
from flowfabric.cli.targets import find_execution, find_flow, open_for_reading
from flowfabric.cli.terminal import Screen, escape_lines, fold_parts, wrap_text
from flowfabric.core.errors import NotFound
from flowfabric.core.executions.records import Event
from flowfabric.engine import Engine
from flowfabric.engine.history import whole_history


def event_lines(event: Event, screen: Screen, *, subject: UUID | None = None) -> list[str]:
    """Return an event as lines for people. If it is about the execution `subject`, leave out id, kind and lane."""
    return fold_parts(_parts(event, subject), screen)


def event_document(event: Event) -> str:
    """Return an event as JSON without empty fields."""
    return json.dumps({name: value for name, value in to_json(event).items() if value is not None})


def _parts(event: Event, subject: UUID | None) -> list[str]:
    parts = [event.at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3], f"{event.family}.{event.name}"]
    if event.execution_id is not None and event.execution_id == subject:
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
    """Return the version as a list; it is empty for events about a child, which have no version."""
    return [] if event.version is None else [f"v{event.version}"]


def _signal(event: Event) -> list[str]:
    """Return the name and the source of a signal."""
    if event.family != "signal" or event.details is None or "source" not in event.details:
        return []
    sender = event.details.get("sender")
    text = f"{event.details['name']} from {event.details['source']}"
    return [text if sender is None else f"{text}, sent by {sender}"]


async def show_events(arguments: argparse.Namespace) -> None:
    """Print the stored events. With --follow, print new events until the command is interrupted."""
    start = arguments.start or ("now" if arguments.follow else "beginning")
    async with open_for_reading(arguments) as engine:
        flow = None if arguments.flow is None else await find_flow(engine, arguments.flow)
        execution = None if arguments.execution is None else await find_execution(engine, arguments.execution)
        subscription = engine.events.subscribe(
            arguments.family,
            lane=arguments.lane,
            kind=arguments.kind,
            flow=flow,
            execution=execution,
            tags=parse_tags(arguments.tag) or None,
            start=start,
            cursor=arguments.cursor,
            name=arguments.name,
            follow=arguments.follow,
        )
        async with subscription as events:
            async for event in events:
                print_lines([event_document(event)] if arguments.json else event_lines(event, stdout_screen()))
                if arguments.follow:
                    sys.stdout.flush()


async def show_history(arguments: argparse.Namespace) -> None:
    """Print the events of an execution and its children in order, then explain the state of the execution."""
    async with open_for_reading(arguments) as engine:
        id_ = await find_execution(engine, arguments.id)
        events = await whole_history(engine, id_)
        if arguments.json:
            print_lines(map(event_document, events))
            return
        screen = stdout_screen()
        for event in events:
            print_lines(event_lines(event, screen, subject=id_))
            print_lines(_traceback_lines(event))
        print_lines(wrap_text(await _explain(engine, id_), screen))


def _traceback_lines(event: Event) -> list[str]:
    text = (event.details or {}).get("traceback")
    return [f"  {line}" for line in escape_lines(text)] if isinstance(text, str) else []


async def _explain(engine: Engine, id_: UUID) -> str:
    try:
        return (await engine.operator.explain(id_)).sentence
    except NotFound:
        return "The execution was purged after its retention; only its events remain."
