"""`flowfabric events`: what happened, and with --follow what happens."""

from __future__ import annotations

import argparse
import sys

from flowfabric.cli.event_lines import event_document, event_lines
from flowfabric.cli.opening import looking
from flowfabric.cli.reading import tags_of
from flowfabric.cli.saying import on_screen, say_lines


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
                say_lines([event_document(event)] if arguments.json else event_lines(event, on_screen()))
                if arguments.follow:
                    sys.stdout.flush()
