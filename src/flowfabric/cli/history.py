"""`flowfabric history ID`: every event of one execution, its children among them, and where it stands."""

from __future__ import annotations

import argparse
from typing import Any

from flowfabric.cli.showing import line, opened
from flowfabric.core.errors import NotFound
from flowfabric.engine.engine import Engine
from flowfabric.engine.histories import whole_history


def add_history(commands: Any) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser("history", help="show the events of one execution", description=__doc__)
    parser.add_argument("id", metavar="ID", help="the execution")
    parser.add_argument("--json", action="store_true", help="one JSON document a line")
    parser.set_defaults(run=show_history)


async def show_history(arguments: argparse.Namespace) -> None:
    """Prints the events in order, and for people why the execution is where it is."""
    async with opened(arguments) as engine:
        for event in await whole_history(engine, arguments.id):
            print(line(event, as_json=arguments.json))
        if not arguments.json:
            print(await _last_word(engine, arguments.id))


async def _last_word(engine: Engine, id_: str) -> str:
    try:
        return (await engine.operator.explain(id_)).sentence
    except NotFound:
        return "Its retention has passed; only its events are left."
