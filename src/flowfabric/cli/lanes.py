"""`flowfabric lanes`: what waits on each lane, and pausing, resuming and draining them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from flowfabric.cli.asking import who
from flowfabric.cli.documents import document
from flowfabric.cli.opening import looking, writing
from flowfabric.cli.saying import hint, on_screen, say, say_lines
from flowfabric.cli.screen import Screen
from flowfabric.cli.tables import Column, table
from flowfabric.engine import Backlog, LaneState, Worker

_COLUMNS = (Column("LANE", 12), Column("STATE"), Column("WAITING", right=True), Column("WORKERS", right=True))


async def list_lanes(arguments: argparse.Namespace) -> None:
    """Prints every lane that was used or touched."""
    async with looking(arguments) as engine:
        lanes = await engine.lanes.list()
        backlog, workers = await engine.backlog(), await engine.workers.list()
    rows = lane_rows(lanes, backlog, workers)
    if arguments.json:
        say_lines(document(dict(zip(("lane", "state", "waiting", "workers"), row, strict=True))) for row in rows)
    elif rows:
        say_lines(lanes_table(rows, on_screen()))
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


Row = tuple[str, LaneState, str, int]


def lane_rows(
    lanes: Mapping[str, LaneState], backlog: Sequence[Backlog], workers: Sequence[Worker]
) -> list[Row]:  # fmt: skip
    """Each lane with its state, how much waits there and how many workers claim from it."""
    return [
        (lane, state, waiting([item for item in backlog if item.lane == lane]),
         sum(lane in worker.lanes for worker in workers))
        for lane, state in lanes.items()
    ]  # fmt: skip


def waiting(backlog: Sequence[Backlog]) -> str:
    """How much that is together; `+` where it was not counted to the end."""
    exact = all(item.waiting.exact for item in backlog)
    return f"{sum(item.waiting.number for item in backlog)}{'' if exact else '+'}"


def lanes_table(rows: Sequence[Row], screen: Screen) -> list[str]:
    """Lanes as people see them."""
    return table(_COLUMNS, rows, screen)


def _tell(arguments: argparse.Namespace, state: LaneState, meaning: str) -> None:
    said = f"Lane {arguments.lane} is {state}: it {meaning}."
    say(arguments, said, {"lane": arguments.lane, "state": state})
