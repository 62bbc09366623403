"""`flowfabric list`: executions, the newest first."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime

from flowfabric.cli.documents import document
from flowfabric.cli.opening import looking
from flowfabric.cli.reading import tags_of, time_of
from flowfabric.cli.saying import age, hint, on_screen, say_lines
from flowfabric.cli.screen import Screen
from flowfabric.cli.tables import Column, table
from flowfabric.core.errors import InvalidRequest
from flowfabric.engine import Engine, Page, Summary

_PAGE, _PAGE_OF_ALL = 50, 500
_COLUMNS = (
    Column("ID"), Column("STATE"), Column("KIND", 8), Column("LANE", 6, spare=True),
    Column("AGE", right=True), Column("DETAIL", 12, spare=True),
)  # fmt: skip


async def list_executions(arguments: argparse.Namespace) -> None:
    """Prints one page, or with --all every one."""
    if arguments.all and arguments.limit is not None:
        raise InvalidRequest("invalid_request", "--all lists every execution; leave out --limit")
    async with looking(arguments) as engine:
        cursor = arguments.cursor
        while True:
            page = await _page(engine, arguments, cursor)
            _print(arguments, page, engine.now())
            cursor = page.next_cursor
            if cursor is None or not arguments.all:
                break
    if cursor is not None:
        hint(f"more: --cursor {cursor}")


async def _page(engine: Engine, arguments: argparse.Namespace, cursor: str | None) -> Page:
    return await engine.executions.list(
        state=arguments.state, lane=arguments.lane, kind=arguments.kind, tags=tags_of(arguments.tag) or None,
        created_from=time_of(arguments.since, "--since"), created_until=time_of(arguments.until, "--until"),
        limit=_limit(arguments), cursor=cursor,
    )  # fmt: skip


def _limit(arguments: argparse.Namespace) -> int:
    if arguments.limit is not None:
        return int(arguments.limit)
    return _PAGE_OF_ALL if arguments.all else _PAGE


def _print(arguments: argparse.Namespace, page: Page, now: datetime) -> None:
    if arguments.json:
        say_lines(document(item) for item in page.items)
    elif page.items:
        say_lines(executions_table(page.items, now, on_screen()))
    else:
        hint("no executions match")


def executions_table(items: Sequence[Summary], now: datetime, screen: Screen) -> list[str]:
    """Executions as people see them."""
    rows = [(item.id, item.state, item.kind, item.lane, age(item.created_at, now), detail(item)) for item in items]
    return table(_COLUMNS, rows, screen)


def detail(item: Summary) -> str:
    """What most wants to be known of an execution beside its state."""
    if item.hold_reason is not None:
        return f"held: {item.hold_reason}"
    if item.lease is not None:
        percent = "" if item.progress_percent is None else f"{item.progress_percent}% "
        return f"{percent}by {item.lease.worker.name}"
    if item.cancelled_by is not None:
        return item.cancel_reason or f"by {item.cancelled_by}"
    if item.last_failure is not None and item.state != "completed":
        return item.last_failure.message
    return item.member_name or ""
