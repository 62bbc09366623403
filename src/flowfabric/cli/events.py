"""`flowfabric events`: what happened, and with --follow what happens."""

from __future__ import annotations

import argparse
from typing import Any

from flowfabric.cli.showing import line, opened
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.subscribing import EventFamily


def add_events(commands: Any) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser("events", help="show events in order", description=__doc__)
    parser.add_argument("--follow", "-f", action="store_true", help="go on with what happens, until interrupted")
    parser.add_argument("--from", dest="start", choices=["beginning", "now"], help="where to begin without a cursor")
    parser.add_argument("--cursor", help="begin after this cursor, which --json shows")
    parser.add_argument("--name", help="read as this named subscriber, which goes on where it was")
    parser.add_argument("--family", action="append", choices=[*EventFamily], help="only these families")
    parser.add_argument("--lane", help="only of this lane")
    parser.add_argument("--kind", help="only of this kind")
    parser.add_argument("--flow", help="only of this flow")
    parser.add_argument("--execution", help="only of this execution")
    parser.add_argument("--tag", action="append", default=[], metavar="KEY=VALUE", help="only with this tag")
    parser.add_argument("--json", action="store_true", help="one JSON document a line")
    parser.set_defaults(run=show_events)


async def show_events(arguments: argparse.Namespace) -> None:
    """Prints events until all are printed, or for ever."""
    start = arguments.start or ("now" if arguments.follow else "beginning")
    async with opened(arguments) as engine:
        subscription = engine.events.subscribe(
            arguments.family, lane=arguments.lane, kind=arguments.kind, flow=arguments.flow,
            execution=arguments.execution, tags=_tags(arguments.tag), start=start, cursor=arguments.cursor,
            name=arguments.name, follow=arguments.follow,
        )  # fmt: skip
        async with subscription as events:
            async for event in events:
                print(line(event, as_json=arguments.json), flush=arguments.follow)


def _tags(pairs: list[str]) -> dict[str, str] | None:
    tags = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise InvalidRequest("invalid_tag_key", f"--tag must look like key=value, not {pair[:64]!r}")
        tags[key] = value
    return tags or None
