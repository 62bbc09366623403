"""`WorkWatch`, with which a worker waits for work without constant polling."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from flowfabric.core import validation
from flowfabric.notify.hub import NotifyHub
from flowfabric.notify.waiters import Waiter

_ONE_DAY_S = 86_400.0
_HINT_S = 0.1


class WorkWatch:
    """Notifies an idle worker when to claim again.

    Enter it before the first claim. Otherwise the worker misses work that is submitted between a claim and the wait
    after it.
    """

    def __init__(self, wakeups: NotifyHub, waiter: Waiter) -> None:
        self._wakeups = wakeups
        self._waiter = waiter

    def __enter__(self) -> Self:
        self._waiter.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._waiter.__exit__(kind, error, traceback)

    async def wait(self, timeout: validation.Duration | None = None) -> bool:  # noqa: ASYNC109 - how long a worker idles
        """Wait until the worker should claim again. Return True if it was notified of possible work.

        Return False after `timeout`. If no reconcilers run in this process, return False earlier, after one polling
        interval. Reconcilers that run in this process look for work for all its workers with one statement.
        """
        limit_s = _ONE_DAY_S if timeout is None else validation.duration(timeout, "timeout").total_seconds()
        return await self._waiter.wait(
            limit_s if self._wakeups.active_reconcilers else min(limit_s, self._wakeups.poll_interval_s)
        )

    async def yield_to_others(self) -> None:
        """Wait as long as the workers of other processes need to find the work of which this one was notified."""
        await asyncio.sleep(_HINT_S if self._wakeups.is_alive else self._wakeups.poll_interval_s)
