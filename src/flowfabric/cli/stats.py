"""`flowfabric stats`: how many executions are where, what waits for whom, and who works."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from flowfabric.cli.documents import document
from flowfabric.cli.lanes import lane_views, lanes_table
from flowfabric.cli.opening import looking
from flowfabric.cli.saying import count_of, on_screen, say_lines
from flowfabric.cli.screen import Screen
from flowfabric.cli.tables import Column, table
from flowfabric.engine import State, Tally

_CELLS = 20


async def show_stats(arguments: argparse.Namespace) -> None:
    """Prints the figures of the namespace."""
    async with looking(arguments) as engine:
        counts, lanes = await engine.executions.count(), await engine.lanes.list()
        backlog, workers = await engine.backlog(), await engine.workers.list()
        status = await engine.events.status()
    busy, slots = sum(worker.busy for worker in workers), sum(worker.slots for worker in workers)
    if arguments.json:
        told = {"namespace": arguments.namespace, "executions": counts, "lanes": lanes, "backlog": backlog}
        people = {"live": len(workers), "slots": slots, "busy": busy}
        print(document({**told, "workers": people, "events_held_back_since": status.held_back_since}))
        return
    screen = on_screen()
    say_lines(counts_table(counts, screen))
    if lanes:
        say_lines(["", *lanes_table(lane_views(lanes, backlog, workers), screen)])
    print(f"\n{count_of(len(workers), 'live worker')}, {busy} of {count_of(slots, 'slot')} busy")


def counts_table(counts: Mapping[State, Tally], screen: Screen) -> list[str]:
    """Executions by state, with a bar for each; `~` marks an estimate."""
    most = max((tally.number for tally in counts.values()), default=0)
    total = sum(tally.number for tally in counts.values())
    rows = [
        (str(state), f"{'' if tally.exact else '~'}{tally.number}", "#" * -(-tally.number * _CELLS // most))
        for state, tally in counts.items() if tally.number
    ]  # fmt: skip
    mark = "" if all(tally.exact for tally in counts.values()) else "~"
    rows.append(("all", f"{mark}{total}", ""))
    return table((Column("STATE"), Column("EXECUTIONS", right=True), Column("", 4, spare=True)), rows, screen)
