"""`flowfabric worker MODULE:APP`: works on the tasks of an app until it is told to end."""

from __future__ import annotations

import argparse
import logging
import sys

from flowfabric.cli.apps import app_of, shown_store
from flowfabric.cli.documents import document
from flowfabric.cli.saying import count_of, hint
from flowfabric.sdk.app import App
from flowfabric.sdk.surroundings import new_worker
from flowfabric.worker import own_runner, run_until_signalled


def work(arguments: argparse.Namespace) -> None:
    """Returns when the worker has drained."""
    app = app_of(arguments)
    _log_to_stderr(logging.WARNING if arguments.quiet or arguments.json else logging.INFO)
    with own_runner() as runner:
        runner.run(_work(app, arguments))


async def _work(app: App, arguments: argparse.Namespace) -> None:
    lanes = tuple(arguments.lane) or ("default",)
    async with app:
        worker = new_worker(
            app, await app.engine(), concurrency=arguments.concurrency, lanes=lanes,
            capabilities=tuple(arguments.capability), lease=arguments.lease,
        )  # fmt: skip
        _tell(arguments, app, "working", worker.id.instance, lanes)
        await run_until_signalled(worker)
        _tell(arguments, app, "stopped", worker.id.instance, lanes)


def _tell(
    arguments: argparse.Namespace, app: App, status: str, instance: str, lanes: tuple[str, ...]
) -> None:  # fmt: skip
    if arguments.json:
        told = {
            "status": status,
            "app": arguments.app,
            "instance": instance,
            "lanes": lanes,
            "tasks": sorted(app.tasks),
        }
        print(document(told), flush=True)
    elif status == "working" and sys.stderr.isatty():
        tasks = count_of(len(app.tasks), "task")
        hint(f"{arguments.app}: {tasks}, lanes {', '.join(lanes)}, store {shown_store(app.store)}. Ctrl-C drains it.")


def _log_to_stderr(level: int) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("flowfabric")
    logger.handlers = [handler]
    logger.setLevel(level)
