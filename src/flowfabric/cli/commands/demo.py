"""`flowfabric demo`: a tour of two minutes on a temporary SQLite file."""

from __future__ import annotations

import argparse
import asyncio
import signal

from flowfabric.cli import exit_codes


def run_tour(arguments: argparse.Namespace) -> int:
    """Run the tour. An interrupt ends it quietly."""
    try:
        # Imports take a moment. Inside the try block, Ctrl-C is handled during that time too.
        from flowfabric.demo.chapters import tour
        from flowfabric.demo.stage import Narrator, everything

        narrator = Narrator(as_json=arguments.json)
        with everything(narrator) as stage:
            asyncio.run(tour(stage))
        narrator.end("The demo has removed its store, its files and its workers.")
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if not arguments.json:
            print("\nInterrupted. Nothing is left behind.")
        return exit_codes.INTERRUPTED
    return exit_codes.OK
