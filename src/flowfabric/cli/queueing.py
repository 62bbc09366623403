"""`flowfabric priority`, `hold` and `unhold`: work that has not begun."""

from __future__ import annotations

import argparse

from flowfabric.cli.asking import confirm, must_be_told, who
from flowfabric.cli.documents import plain
from flowfabric.cli.opening import writing
from flowfabric.cli.saying import count_of, say
from flowfabric.core.errors import InvalidRequest
from flowfabric.engine import AlreadySatisfied


async def priority(arguments: argparse.Namespace) -> None:
    """Moves one execution in the queue."""
    async with writing(arguments) as engine:
        answer = await engine.operator.change_priority(arguments.id, arguments.priority, **who(arguments))
    say(arguments, f"Its priority is {answer.new}; it was {answer.old}.", answer)


async def hold(arguments: argparse.Namespace) -> None:
    """Stops one execution before it begins."""
    async with writing(arguments) as engine:
        answer = await engine.operator.hold(arguments.id, **who(arguments))
    say(arguments, "Held.", {"id": arguments.id, **plain(answer)})


async def unhold(arguments: argparse.Namespace) -> None:
    """Lets one execution go on, or with --all many."""
    if (arguments.id is None) is not arguments.all:
        raise InvalidRequest("invalid_request", "say which execution, or --all")
    if arguments.id is not None and (arguments.kind is not None or arguments.held_for is not None):
        raise InvalidRequest("invalid_request", "--kind and --held-for choose among --all; leave out the execution")
    if arguments.all:
        await _unhold_all(arguments)
        return
    async with writing(arguments) as engine:
        answer = await engine.operator.unhold(arguments.id, **who(arguments))
    if isinstance(answer, AlreadySatisfied):
        say(arguments, "Nothing to do: it is not held.", {"id": arguments.id, "unheld": False, "state": None})
    else:
        say(arguments, f"It goes on: {answer.state}.", {"id": arguments.id, "unheld": True, "state": answer.state})


async def _unhold_all(arguments: argparse.Namespace) -> None:
    must_be_told(arguments)
    which = "" if arguments.kind is None else f" of kind {arguments.kind}"
    which += "" if arguments.held_for is None else f" for {arguments.held_for!r}"
    confirm(arguments, f"Let everything go on that is held{which}?")
    async with writing(arguments) as engine:
        number = await engine.operator.unhold_all(kind=arguments.kind, held_for=arguments.held_for, **who(arguments))
    say(arguments, f"{count_of(number, 'execution')} went on.", {"unheld": number})
