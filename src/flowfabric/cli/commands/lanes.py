"""`flowfabric lanes`: list lanes with their backlog; pause, resume and drain them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flowfabric.cli.inputs import audit_args
from flowfabric.cli.output import format_json, print_hint, print_lines, print_result, stdout_screen
from flowfabric.cli.targets import open_for_reading, open_for_writing
from flowfabric.cli.terminal import Column, Screen, format_table
from flowfabric.engine import ApproximateCount, Backlog, LaneState, WorkerInfo

_COLUMNS = (
    Column("LANE"), Column("STATE"), Column("WAITING", align_right=True),
    Column("WORKERS", align_right=True, is_optional=True),
)  # fmt: skip


async def list_lanes(arguments: argparse.Namespace) -> None:
    """Print every lane that was used or changed."""
    async with open_for_reading(arguments) as engine:
        lanes = await engine.lanes.list()
        backlog, workers = await engine.backlog(), await engine.workers.list()
    views = lane_views(lanes, backlog, workers)
    if arguments.json:
        print_lines(format_json(view) for view in views)
    elif views:
        print_lines(lanes_table(views, stdout_screen()))
    else:
        print_hint("No lane has been used yet.")


async def pause(arguments: argparse.Namespace) -> None:
    """Pause a lane, so that it gives no work to workers."""
    async with open_for_writing(arguments) as engine:
        state = await engine.lanes.pause(arguments.lane, **audit_args(arguments))
    _print_state(arguments, state, "does not hand out work")


async def resume(arguments: argparse.Namespace) -> None:
    """Resume a lane, so that it accepts work and gives it to workers again."""
    async with open_for_writing(arguments) as engine:
        state = await engine.lanes.resume(arguments.lane, **audit_args(arguments))
    _print_state(arguments, state, "accepts and hands out work")


async def drain(arguments: argparse.Namespace) -> None:
    """Drain a lane, so that it accepts no new work."""
    async with open_for_writing(arguments) as engine:
        state = await engine.lanes.drain(arguments.lane, **audit_args(arguments))
    _print_state(arguments, state, "accepts no new work")


@dataclass(frozen=True, slots=True)
class LaneView:
    """A lane with its state, its backlog and the number of live workers that claim from it."""

    lane: str
    state: LaneState
    waiting: ApproximateCount
    workers: int


def lane_views(
    lanes: Mapping[str, LaneState], backlog: Sequence[Backlog], workers: Sequence[WorkerInfo]
) -> list[LaneView]:
    """Combine the states, the backlog and the workers of the lanes into one view per lane."""
    return [
        LaneView(
            lane,
            state,
            _sum_counts([entry.waiting for entry in backlog if entry.lane == lane]),
            sum(lane in worker.lanes for worker in workers),
        )
        for lane, state in lanes.items()
    ]


def lanes_table(views: Sequence[LaneView], screen: Screen) -> list[str]:
    """Return the lanes as a table; `+` marks a number that is a lower limit, because counting stopped there."""
    rows = [
        (view.lane, view.state, f"{view.waiting.value}{'' if view.waiting.is_exact else '+'}", view.workers)
        for view in views
    ]
    return format_table(_COLUMNS, rows, screen)


def _sum_counts(counts: Sequence[ApproximateCount]) -> ApproximateCount:
    return ApproximateCount(sum(count.value for count in counts), all(count.is_exact for count in counts))


def _print_state(arguments: argparse.Namespace, state: LaneState, meaning: str) -> None:
    sentence = f"Lane {arguments.lane} is {state}: it {meaning}."
    print_result(arguments, sentence, {"lane": arguments.lane, "state": state})
