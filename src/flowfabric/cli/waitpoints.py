"""`flowfabric waitpoints`: who waits for what, or the waitpoints of one execution."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime

from flowfabric.cli.documents import document
from flowfabric.cli.opening import looking
from flowfabric.cli.saying import age, hint, on_screen, say_lines
from flowfabric.cli.screen import Screen
from flowfabric.cli.tables import Column, table
from flowfabric.engine import SuspendedView, WaitpointView

_WAITS = (
    Column("EXECUTION"), Column("REASON", 10, spare=True), Column("SINCE", right=True),
    Column("TIMEOUT", right=True), Column("WAITS FOR", 16),
)  # fmt: skip
_WAITPOINTS = (
    Column("KEY", 12), Column("STATE"), Column("KIND", spare=True), Column("APPROVER", 8, spare=True),
    Column("SIGNALS", 8, spare=True), Column("AGE", right=True), Column("EXPIRES", right=True, spare=True),
    Column("WAITPOINT"),
)  # fmt: skip


async def show_waits(arguments: argparse.Namespace) -> None:
    """Prints one page of what is suspended, or with an id that execution's waitpoints, closed ones too."""
    async with looking(arguments) as engine:
        found: Sequence[SuspendedView | WaitpointView]
        if arguments.id is None:
            found = await engine.waitpoints.list_suspended(limit=arguments.limit)
        else:
            await engine.executions.glance(arguments.id)
            found = await engine.waitpoints.list(arguments.id, limit=arguments.limit)
        now = engine.now()
    if arguments.json:
        say_lines(document(item) for item in found)
    elif not found:
        hint("nothing is suspended" if arguments.id is None else "it has no waitpoints")
    else:
        waits = [item for item in found if isinstance(item, SuspendedView)]
        points = [item for item in found if isinstance(item, WaitpointView)]
        screen = on_screen()
        say_lines(waits_table(waits, now, screen) if waits else waitpoints_table(points, now, screen))
    if len(found) == arguments.limit:
        hint(f"there may be more than these {arguments.limit}: --limit shows up to 1000")


def waits_table(waits: Sequence[SuspendedView], now: datetime, screen: Screen) -> list[str]:
    """Open waits as people see them."""
    rows = [
        (item.execution_id, item.reason.value.removeprefix("waiting_for_"), age(item.opened_at, now),
         age(item.timeout_at, now), " and ".join(item.missing))
        for item in waits
    ]  # fmt: skip
    return table(_WAITS, rows, screen)


def waitpoints_table(points: Sequence[WaitpointView], now: datetime, screen: Screen) -> list[str]:
    """Waitpoints as people see them."""
    rows = [
        (item.key, item.state, item.kind, item.approver, "any" if item.names is None else ", ".join(item.names),
         age(item.created_at, now), age(item.expires_at, now), item.id)
        for item in points
    ]  # fmt: skip
    return table(_WAITPOINTS, rows, screen)
