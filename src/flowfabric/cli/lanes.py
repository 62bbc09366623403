"""`flowfabric lanes`: what waits on each lane, and pausing, resuming and draining them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flowfabric.cli.asking import who
from flowfabric.cli.documents import document
from flowfabric.cli.opening import looking, writing
from flowfabric.cli.saying import hint, on_screen, say, say_lines
from flowfabric.cli.screen import Screen
from flowfabric.cli.tables import Column, table
from flowfabric.engine import Backlog, LaneState, Tally, Worker

_COLUMNS = (Column("LANE"), Column("STATE"), Column("WAITING", right=True), Column("WORKERS", right=True, spare=True))


async def list_lanes(arguments: argparse.Namespace) -> None:
    """Prints every lane that was used or touched."""
    async with looking(arguments) as engine:
        lanes = await engine.lanes.list()
        backlog, workers = await engine.backlog(), await engine.workers.list()
    views = lane_views(lanes, backlog, workers)
    if arguments.json:
        say_lines(document(view) for view in views)
    elif views:
        say_lines(lanes_table(views, on_screen()))
    else:
        hint("no lane was used yet")


async def pause(arguments: argparse.Namespace) -> None:
    """Gives out no more of its work."""
    async with writing(arguments) as engine:
        _tell(arguments, await engine.lanes.pause(arguments.lane, **who(arguments)), "gives out no work")


async def resume(arguments: argparse.Namespace) -> None:
    """Accepts and gives out work."""
    async with writing(arguments) as engine:
        _tell(arguments, await engine.lanes.resume(arguments.lane, **who(arguments)), "accepts and gives out work")


async def drain(arguments: argparse.Namespace) -> None:
    """Accepts no new work."""
    async with writing(arguments) as engine:
        _tell(arguments, await engine.lanes.drain(arguments.lane, **who(arguments)), "accepts no new work")


@dataclass(frozen=True, slots=True)
class LaneView:
    """A lane with its state, how much waits there and how many live workers claim from it."""

    lane: str
    state: LaneState
    waiting: Tally
    workers: int


def lane_views(lanes: Mapping[str, LaneState], backlog: Sequence[Backlog], workers: Sequence[Worker]) -> list[LaneView]:
    """Each lane as it may be shown."""
    return [
        LaneView(
            lane, state, _together([item.waiting for item in backlog if item.lane == lane]),
            sum(lane in worker.lanes for worker in workers),
        )
        for lane, state in lanes.items()
    ]  # fmt: skip


def lanes_table(views: Sequence[LaneView], screen: Screen) -> list[str]:
    """Lanes as people see them; `+` where it was not counted to the end."""
    rows = [
        (view.lane, view.state, f"{view.waiting.number}{'' if view.waiting.exact else '+'}", view.workers)
        for view in views
    ]
    return table(_COLUMNS, rows, screen)


def _together(tallies: Sequence[Tally]) -> Tally:
    return Tally(sum(tally.number for tally in tallies), all(tally.exact for tally in tallies))


def _tell(arguments: argparse.Namespace, state: LaneState, meaning: str) -> None:
    said = f"Lane {arguments.lane} is {state}: it {meaning}."
    say(arguments, said, {"lane": arguments.lane, "state": state})
