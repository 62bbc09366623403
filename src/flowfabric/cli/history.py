"""`flowfabric history ID`: every event of one execution, and where it stands."""

from __future__ import annotations

import argparse

from flowfabric.cli.event_lines import line
from flowfabric.cli.opening import looking
from flowfabric.cli.saying import on_screen, say_lines
from flowfabric.cli.tables import paragraph
from flowfabric.core.errors import NotFound
from flowfabric.engine import Engine

_PAGE = 1000


async def show_history(arguments: argparse.Namespace) -> None:
    """Prints the events in order, and for people why the execution is where it is."""
    async with looking(arguments) as engine:
        after = 0
        while events := await engine.executions.history(arguments.id, after=after, limit=_PAGE):
            for event in events:
                print(line(event, as_json=arguments.json))
                after = event.version or after
            if len(events) < _PAGE:
                break
        if not arguments.json:
            say_lines(paragraph(await _last_word(engine, arguments.id), on_screen()))


async def _last_word(engine: Engine, id_: str) -> str:
    try:
        return (await engine.operator.explain(id_)).sentence
    except NotFound:
        return "Its retention has passed; only its events are left."
