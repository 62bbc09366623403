"""`flowfabric history ID`: every event of one execution, its children among them, and where it stands."""

from __future__ import annotations

import argparse

from flowfabric.cli.event_lines import event_document, event_lines
from flowfabric.cli.opening import looking
from flowfabric.cli.saying import on_screen, say_lines
from flowfabric.cli.tables import paragraph
from flowfabric.core.errors import NotFound
from flowfabric.core.ids import parse_id
from flowfabric.engine import Engine
from flowfabric.engine.histories import whole_history


async def show_history(arguments: argparse.Namespace) -> None:
    """Prints the events in order, and for people why the execution is where it is."""
    async with looking(arguments) as engine:
        events = await whole_history(engine, arguments.id)
        if arguments.json:
            say_lines(map(event_document, events))
            return
        screen = on_screen()
        for event in events:
            say_lines(event_lines(event, screen, of=parse_id(arguments.id)))
        say_lines(paragraph(await _last_word(engine, arguments.id), screen))


async def _last_word(engine: Engine, id_: str) -> str:
    try:
        return (await engine.operator.explain(id_)).sentence
    except NotFound:
        return "Its retention has passed; only its events are left."
