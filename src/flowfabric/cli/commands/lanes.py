"""`flowfabric lanes`: list lanes with their backlog; pause, resume and drain them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from flowfabric.cli.inputs import audit_args, page_args
from flowfabric.cli.output import (
    format_json,
    format_time,
    print_hint,
    print_lines,
    print_next,
    print_result,
    stdout_screen,
)
from flowfabric.cli.targets import open_for_reading, open_for_writing
from flowfabric.cli.terminal import Column, Screen, format_table
from flowfabric.core.validation import MAX_BATCH
from flowfabric.engine import ApproximateCount, Backlog, Engine, LaneInfo, LaneState, WorkerInfo
from flowfabric.engine.cursors import read_all

_COLUMNS = (
    Column("LANE"), Column("STATE"), Column("WAITING", align_right=True),
    Column("WORKERS", align_right=True, is_optional=True), Column("WHY", 12, is_optional=True),
)  # fmt: skip


async def list_lanes(arguments: argparse.Namespace) -> None:
    """Print every lane that was used or changed."""
    async with open_for_reading(arguments) as engine:
        page = await engine.lanes.list(**page_args(arguments))
        backlog, workers = await engine.backlog(), await read_workers(engine)
    views = lane_views(page.items, backlog, workers)
    if arguments.json:
        print_lines(format_json(view) for view in views)
    elif views:
        print_lines(lanes_table(views, stdout_screen()))
    else:
        print_hint("No lane has been used yet.")
    print_next(page.next_cursor)


async def read_lanes(engine: Engine) -> list[LaneInfo]:
    """Return all lanes."""
    return await read_all(lambda cursor: engine.lanes.list(limit=MAX_BATCH, cursor=cursor))


async def read_workers(engine: Engine) -> list[WorkerInfo]:
    """Return all live workers."""
    return await read_all(lambda cursor: engine.workers.list(limit=MAX_BATCH, cursor=cursor))


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
    """A lane with its state, its backlog, the number of live workers that claim from it, and its last change."""

    lane: str
    state: LaneState
    waiting: ApproximateCount
    workers: int
    changed_at: datetime | None = None
    principal: str | None = None
    reason: str | None = None


def lane_views(lanes: Iterable[LaneInfo], backlog: Sequence[Backlog], workers: Sequence[WorkerInfo]) -> list[LaneView]:
    """Combine the states, the backlog and the workers of the lanes into one view per lane."""
    return [
        LaneView(
            lane.lane,
            lane.state,
            _sum_counts([entry.waiting for entry in backlog if entry.lane == lane.lane]),
            sum(lane.lane in worker.lanes for worker in workers),
            lane.changed_at,
            lane.principal,
            lane.reason,
        )
        for lane in lanes
    ]


def lanes_table(views: Sequence[LaneView], screen: Screen) -> list[str]:
    """Return the lanes as a table; `+` marks a number that is a lower limit, because counting stopped there."""
    rows = [
        (view.lane, view.state, f"{view.waiting.value}{'' if view.waiting.is_exact else '+'}", view.workers, _why(view))
        for view in views
    ]
    return format_table(_COLUMNS, rows, screen)


def _why(view: LaneView) -> str:
    """Return who closed the lane, when and why. A lane that is active needs no explanation."""
    if view.state is LaneState.ACTIVE or not view.principal:
        return ""
    reason = f": {view.reason}" if view.reason else ""
    return f"by {view.principal} at {format_time(view.changed_at)}{reason}"


def _sum_counts(counts: Sequence[ApproximateCount]) -> ApproximateCount:
    return ApproximateCount(sum(count.value for count in counts), all(count.is_exact for count in counts))


def _print_state(arguments: argparse.Namespace, state: LaneState, meaning: str) -> None:
    sentence = f"Lane {arguments.lane} is {state}: it {meaning}."
    print_result(arguments, sentence, {"lane": arguments.lane, "state": state})
