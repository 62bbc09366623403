"""Working on the tasks of an app: in a process of its own, for one result, or within somebody's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from flowfabric.core.errors import InvalidRequest
from flowfabric.sdk import surroundings
from flowfabric.sdk.aliases import Duration

if TYPE_CHECKING:
    from flowfabric.sdk.app import App
    from flowfabric.sdk.surroundings import Worker
    from flowfabric.sdk.tasks import Task

T = TypeVar("T")
DEFAULT_LANES = ("default",)
DEFAULT_LEASE = "30s"
_SLOTS = 16


def run_worker(
    app: App, *, concurrency: int = _SLOTS, lanes: Collection[str] = DEFAULT_LANES,
    capabilities: Collection[str] = (), lease: Duration = DEFAULT_LEASE,
) -> None:  # fmt: skip
    """Works until the process is told to end."""
    terms = {"concurrency": concurrency, "lanes": lanes, "capabilities": capabilities, "lease": lease}
    _in_own_loop(_until_signalled(app, terms))


def run_task(app: App, task: Task[..., T], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> T:
    """Submits, works on everything that the app knows, and answers the result."""
    if task.app is not app:
        raise InvalidRequest("other_app", f"{task.name} is a task of another app", kind=task.name)
    return _in_own_loop(_until_ended(app, task, args, kwargs))


@asynccontextmanager
async def worker(
    app: App, *, concurrency: int, lanes: Collection[str], capabilities: Collection[str],
    lease: Duration = DEFAULT_LEASE,
) -> AsyncIterator[Worker]:  # fmt: skip
    """A worker that works while the block is entered."""
    engine = await app.engine()
    async with surroundings.new_worker(
        app, engine, concurrency=concurrency, lanes=lanes, capabilities=capabilities, lease=lease
    ) as working:
        yield working


async def _until_signalled(app: App, terms: Mapping[str, Any]) -> None:
    async with app:
        engine = await app.engine()
        await surroundings.work_until_signalled(surroundings.new_worker(app, engine, **terms))


async def _until_ended(app: App, task: Task[..., T], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> T:
    async with app:
        app.check()
        handle = await task.submit(*args, **kwargs)
        async with _everything(app, task):
            return await handle


def _everything(app: App, task: Task[..., Any]) -> AbstractAsyncContextManager[Worker]:
    """A worker for all lanes and capabilities that any task of the app asks for."""
    submission = task.submission_of(b"")
    settings = [known.settings for known in app.tasks.values()]
    lanes = {*DEFAULT_LANES, submission.lane, *(item.lane for item in settings)}
    capabilities = {*submission.requires, *(name for item in settings for name in item.requires)}
    return worker(app, concurrency=_SLOTS, lanes=sorted(lanes), capabilities=capabilities)


def _in_own_loop(work: Coroutine[Any, Any, T]) -> T:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with surroundings.own_runner() as runner:
            return runner.run(work)
    work.close()
    message = "app.run starts an event loop of its own, and one is running here; use `async with app.worker():`"
    raise InvalidRequest("loop_is_running", message)
