"""`flowfabric worker` and `workers`: run a worker, list live workers, and remove a dead worker."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from datetime import datetime

from flowfabric.app.app import App
from flowfabric.app.store_address import redact_password
from flowfabric.app.workers import lanes_of, new_worker, stderr_handler
from flowfabric.cli.inputs import audit_args, confirm, page_args, require_confirmation
from flowfabric.cli.output import (
    format_age,
    format_count,
    format_json,
    format_time,
    print_hint,
    print_lines,
    print_next,
    print_result,
    stdout_screen,
)
from flowfabric.cli.targets import load_app_with_options, open_for_reading, open_for_writing
from flowfabric.cli.terminal import Column, Screen, format_table
from flowfabric.core import validation
from flowfabric.core.workers import worker_not_found
from flowfabric.engine import AlreadySatisfied, WorkerInfo
from flowfabric.worker import event_loop_runner, run_until_signal

_COLUMNS = (
    Column("INSTANCE"), Column("NAME", 8, is_optional=True), Column("BUSY", align_right=True), Column("LANES", 8),
    Column("OFFERS", 8, is_optional=True), Column("VERSION", is_optional=True), Column("UP", align_right=True),
    Column("SEEN", align_right=True, is_optional=True),
)  # fmt: skip


async def list_workers(arguments: argparse.Namespace) -> None:
    """Print the live workers."""
    async with open_for_reading(arguments) as engine:
        page = await engine.workers.list(lane=getattr(arguments, "lane", None), **page_args(arguments))
        now = engine.now()
    if arguments.json:
        print_lines(format_json(worker) for worker in page.items)
    elif page.items:
        print_lines(workers_table(page.items, now, stdout_screen()))
    else:
        print_hint("No live worker is registered. Start one with: flowfabric worker MODULE:APP")
    print_next(page.next_cursor)


async def remove(arguments: argparse.Namespace) -> None:
    """Remove a worker from the registry immediately."""
    require_confirmation(arguments)
    async with open_for_writing(arguments) as engine:
        confirm(arguments, f"Remove {arguments.instance} from the registry?")
        outcome = await engine.workers.mark_dead(arguments.instance, **audit_args(arguments))
    if isinstance(outcome, AlreadySatisfied):
        raise worker_not_found(arguments.instance)
    print_result(arguments, "Removed. Its leases expire automatically.", outcome)


def workers_table(workers: Sequence[WorkerInfo], now: datetime, screen: Screen) -> list[str]:
    """Return the workers as a table."""
    rows = [
        (
            worker.id.instance,
            worker.id.name,
            f"{worker.busy}/{worker.slots}",
            ",".join(worker.lanes),
            ",".join(worker.capabilities),
            worker.version,
            format_age(worker.registered_at, now),
            f"not heard from since {format_time(worker.seen_at)}"
            if worker.is_silent(now)
            else format_age(worker.seen_at, now),
        )
        for worker in workers
    ]
    return format_table(_COLUMNS, rows, screen)


def work(arguments: argparse.Namespace) -> None:
    """Run a worker until SIGTERM or Ctrl-C. Return after the worker has finished its work or given back its leases."""
    app = load_app_with_options(arguments)
    if arguments.code_version is not None:
        app.code_version = validation.name(arguments.code_version, "code_version")
    if arguments.claim_namespace:
        app.engines.set_options(claim_namespaces=(app.namespace, *arguments.claim_namespace))
    _log_to_stderr(logging.WARNING if arguments.quiet or arguments.json else logging.INFO)
    with event_loop_runner() as runner:
        runner.run(_work(app, arguments))


async def _work(app: App, arguments: argparse.Namespace) -> None:
    try:
        engine = await app.engine()
        app.check()
        lanes = tuple(arguments.lane) or lanes_of(app)
        worker = new_worker(
            app,
            engine,
            concurrency=arguments.concurrency,
            lanes=lanes,
            capabilities=tuple(arguments.capability),
            lease=arguments.lease,
        )
        _print_status(arguments, app, "working", worker.id.instance, lanes)
        await run_until_signal(worker, app.engines.close, may_exit=True)
        _print_status(arguments, app, "stopped", worker.id.instance, lanes)
    finally:
        await app.close()


def _print_status(arguments: argparse.Namespace, app: App, status: str, instance: str, lanes: tuple[str, ...]) -> None:
    if arguments.json:
        document = {
            "status": status,
            "app": arguments.app,
            "instance": instance,
            "lanes": lanes,
            "tasks": sorted(app.tasks),
        }
        print(format_json(document), flush=True)
    elif status == "working" and sys.stderr.isatty():
        tasks = format_count(len(app.tasks), "task")
        print_hint(
            f"{arguments.app}: {tasks}, lanes {', '.join(lanes)}, store {redact_password(app.store)}. Ctrl-C drains it."
        )


def _log_to_stderr(level: int) -> None:
    logger = logging.getLogger("flowfabric")
    logger.handlers = [stderr_handler()]
    logger.setLevel(level)
