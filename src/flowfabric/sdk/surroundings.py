"""What stands above durable functions and is reached through an app: workers, and what receives links.

These are the only imports that point upwards, and they are made when somebody asks for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from flowfabric.core.errors import FlowFabricError
from flowfabric.sdk.aliases import Duration

if TYPE_CHECKING:
    from flowfabric.engine.engine import Engine
    from flowfabric.sdk.app import App
    from flowfabric.worker import Worker

__all__ = ["Worker", "new_worker", "own_runner", "receiver", "work_until_signalled"]


def new_worker(
    app: App, engine: Engine, *, concurrency: int, lanes: Collection[str], capabilities: Collection[str],
    lease: Duration,
) -> Worker:  # fmt: skip
    """A worker for the tasks of an app, not yet started. Its leases are renewed by a thread with an engine of its own,
    unless the store is this process's memory, which no other engine sees."""
    from flowfabric.sdk.run import Runner
    from flowfabric.sdk.threads import ThreadPools
    from flowfabric.worker import Worker

    app.check()
    threads = ThreadPools(concurrency)
    in_memory = app.store.endswith(":memory:") or app.engines.is_adopted
    renewal = partial(app.engines.connecting, app.store, pool_size=1)
    return Worker(
        engine, Runner(app, threads), concurrency=concurrency, lanes=tuple(lanes), capabilities=capabilities,
        lease_ttl=lease, renewal=None if in_memory else renewal, threads=threads,
    )  # fmt: skip


def own_runner() -> AbstractContextManager[asyncio.Runner]:
    """What runs the coroutines of a process that is ours."""
    from flowfabric import worker

    return worker.own_runner()


async def work_until_signalled(worker: Worker) -> None:
    """Works until SIGTERM or SIGINT."""
    from flowfabric.worker import run_until_signalled

    await run_until_signalled(worker)


def receiver(app: App) -> Any:
    """The ASGI application of an app."""
    from flowfabric.asgi import asgi_app

    return asgi_app(app.engine, payload_check=partial(_wrong_payload, app), close=app.engines.close)


def _wrong_payload(app: App, kind: str, key: str, payload: bytes) -> str | None:
    """What is wrong with the payload of a callback, if this process has seen the task wait for it."""
    form = app.callbacks.get((kind, key))
    try:
        if form is not None:
            form.restore(payload)
    except FlowFabricError as error:
        return error.message
    return None
