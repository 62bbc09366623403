"""`flowfabric events`: what happened, and with --follow what happens."""

from __future__ import annotations

import argparse

from flowfabric.cli.event_lines import line
from flowfabric.cli.opening import looking
from flowfabric.cli.reading import tags_of


async def show_events(arguments: argparse.Namespace) -> None:
    """Prints events until all are printed, or for ever."""
    start = arguments.start or ("now" if arguments.follow else "beginning")
    async with looking(arguments) as engine:
        subscription = engine.events.subscribe(
            arguments.family, lane=arguments.lane, kind=arguments.kind, flow=arguments.flow,
            execution=arguments.execution, tags=tags_of(arguments.tag) or None, start=start, cursor=arguments.cursor,
            name=arguments.name, follow=arguments.follow,
        )  # fmt: skip
        async with subscription as events:
            async for event in events:
                print(line(event, as_json=arguments.json), flush=arguments.follow)
