"""`flowfabric explain`: why an execution is not running, in one sentence."""

from __future__ import annotations

import argparse

from flowfabric.cli.documents import document
from flowfabric.cli.opening import looking
from flowfabric.cli.saying import on_screen, say_lines
from flowfabric.cli.tables import paragraph


async def explain(arguments: argparse.Namespace) -> None:
    """Prints the sentence, or as a document with the facts behind it."""
    async with looking(arguments) as engine:
        found = await engine.operator.explain(arguments.id)
    say_lines([document(found)] if arguments.json else paragraph(found.sentence, on_screen()))
