"""Tasks of asyncio that a body starts by itself. On a loop of our own they end with the body: nobody would hear of what
they come to, and nothing durable can happen in them any more. In a loop of somebody else they go on."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import flowfabric
from flowfabric.sdk.units import STEP, UNIT

if TYPE_CHECKING:
    from flowfabric.sdk.run import Run

LOG = logging.getLogger("flowfabric")
_OURS = str(Path(flowfabric.__file__).parent)
_PATIENCE_S = 1.0
_SHOWN = 5


def watch(loop: asyncio.AbstractEventLoop) -> None:
    """Has the loop take note of the tasks that bodies start."""
    loop.set_task_factory(_made)


def _made(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
    unit = UNIT.get()
    if unit is not None and STEP.get() is None and not _is_ours(coroutine):
        # What a library starts on behalf of the store is not the body's, and may serve others too.
        raw, parent = unit.run.raw_tasks, asyncio.current_task(loop)
        if parent is unit.task or parent in raw:
            raw.add(task)
            task.add_done_callback(raw.discard)
    return task


def _is_ours(coroutine: Any) -> bool:
    code = getattr(coroutine, "cr_code", None)
    return code is not None and code.co_filename.startswith(_OURS)


async def cancel_left_over(run: Run) -> None:
    """Cancels and reports what a body has left behind."""
    left = set(run.raw_tasks)
    if not left:
        return
    names = sorted(_name(task) for task in left)
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    LOG.warning("%s left tasks of asyncio behind, which are cancelled: %s; await what you start", run.task.name, shown)
    for task in left:
        task.cancel()
    _, stubborn = await asyncio.wait(left, timeout=_PATIENCE_S)
    for task in stubborn:
        LOG.error("%s left a task of asyncio behind that cannot be cancelled: %s", run.task.name, _name(task))


def _name(task: asyncio.Task[Any]) -> str:
    coroutine = task.get_coro()
    return getattr(coroutine, "__qualname__", None) or getattr(coroutine, "path", None) or task.get_name()
