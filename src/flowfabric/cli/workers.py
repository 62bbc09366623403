"""`flowfabric workers`: who is there to do the work."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime

from flowfabric.cli.asking import confirm, must_be_told, who
from flowfabric.cli.documents import document
from flowfabric.cli.opening import looking, writing
from flowfabric.cli.saying import age, hint, on_screen, say, say_lines
from flowfabric.cli.screen import Screen
from flowfabric.cli.tables import Column, table
from flowfabric.core.workers import worker_not_found
from flowfabric.engine import AlreadySatisfied, Worker

_COLUMNS = (
    Column("INSTANCE"), Column("NAME", 8, spare=True), Column("BUSY", right=True), Column("LANES", 8),
    Column("OFFERS", 8, spare=True), Column("VERSION", spare=True), Column("UP", right=True),
    Column("SEEN", right=True, spare=True),
)  # fmt: skip


async def list_workers(arguments: argparse.Namespace) -> None:
    """Prints the live workers."""
    async with looking(arguments) as engine:
        workers, now = await engine.workers.list(lane=getattr(arguments, "lane", None)), engine.now()
    if arguments.json:
        say_lines(document(worker) for worker in workers)
    elif workers:
        say_lines(workers_table(workers, now, on_screen()))
    else:
        hint("no live worker is registered; start one with: flowfabric worker MODULE:APP")


async def remove(arguments: argparse.Namespace) -> None:
    """Takes one out of the register at once."""
    must_be_told(arguments)
    async with writing(arguments) as engine:
        confirm(arguments, f"Take {arguments.instance} out of the register?")
        answer = await engine.workers.mark_dead(arguments.instance, **who(arguments))
    if isinstance(answer, AlreadySatisfied):
        raise worker_not_found(arguments.instance)
    say(arguments, "Removed. Its leases run out by themselves.", answer)


def workers_table(workers: Sequence[Worker], now: datetime, screen: Screen) -> list[str]:
    """Workers as people see them."""
    rows = [
        (worker.id.instance, worker.id.name, f"{worker.busy}/{worker.slots}", ",".join(worker.lanes),
         ",".join(worker.capabilities), worker.version, age(worker.registered_at, now), age(worker.seen_at, now))
        for worker in workers
    ]  # fmt: skip
    return table(_COLUMNS, rows, screen)
